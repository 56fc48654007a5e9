"""Image stores and the keeping of snapshots in miniature, for tests of the core."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, ClassVar

from coordinator.core import commands, events
from coordinator.core.kept import KeptImages, Retention
from coordinator.core.model import AttemptState, Failure, Snapshot

if TYPE_CHECKING:
    from tests.support.core_world import World

ENDED = (AttemptState.COMMITTED, AttemptState.ABORTED)
OBJECT_BYTES = 100


@dataclass
class Keeping:
    """What lies in image stores, and what nodes were asked to do there."""

    WRITES: ClassVar = (commands.MarkSnapshots, commands.WeighAttempts, commands.ForgetSnapshots)

    world: World
    tasks: list[commands.SendTask] = field(default_factory=list)  # not answered
    images: set[tuple[str, str, str]] = field(default_factory=set)  # store, job, attempt
    failure: Failure | None = None  # of every task, while it is set

    def receive(self, task: commands.SendTask) -> None:
        """A node gets a task, if its stream stands."""
        if self.world.nodes[task.node].attached:
            self.tasks.append(task)

    def stored(self, snapshot: Snapshot) -> None:
        """Its images are in the stores that its workers name."""
        self.images |= {(store, snapshot.job, snapshot.snapshot) for store in snapshot.stores}

    def pin(self, name: str, why: str) -> None:
        """An operator's edge pins a snapshot in the store and tells the core."""
        self.world.snapshots[name] = replace(self.world.snapshots[name], pinned=why)
        self.world.event(events.SnapshotChanged(self.world.snapshots[name]))

    def retain(self, job: str, policy: Retention | None) -> None:
        """An operator's edge records other rules and tells the core."""
        self.world.jobs[job] = replace(self.world.jobs[job], retention=policy)
        self.world.event(events.RetentionChanged(job, policy))

    def delete(self, *names: str, force: bool = False, cleaning: str = "d1") -> None:
        """An operator asks for a deletion."""
        self.world.event(events.DeletionRequested("llm", cleaning, names, force))

    def apply(self, write: commands.Command) -> events.Event:
        """The store carries out a write of a cleaning."""
        if isinstance(write, commands.MarkSnapshots):
            return self._mark(write)
        if isinstance(write, commands.WeighAttempts):
            return self._weigh(write)
        assert isinstance(write, commands.ForgetSnapshots)
        for name in write.snapshots:
            gone = self.world.snapshots.pop(name, None)
            if gone is not None:
                assert gone.deleting
                left = {key for key in self.images if key[1:] == (gone.job, name)}
                assert not left, "a snapshot is forgotten before its images are gone"
        return events.SnapshotsForgotten(write.cleaning)

    def _mark(self, write: commands.MarkSnapshots) -> events.Event:
        world, marked, refused = self.world, [], []
        for name in write.snapshots:
            known = world.snapshots.get(name)
            job = world.jobs[write.job]
            if known is None or known.pinned or (job.latest == name and not write.latest_too):
                refused.append(Failure("Refused", f"{name} is gone, pinned or the newest"))
                continue
            busy = False
            for restore in world.restores.values():
                over = restore.state.name in ("RUNNING", "FAILED")
                told = over or restore.snapshot != name or restore.restore in write.users
                assert told, "a restore has it"
                busy |= not over and restore.snapshot == name
            for attempt in world.attempts.values():
                over = attempt.state in ENDED
                told = over or attempt.base != name or attempt.attempt in write.users
                assert told, "an attempt is based on it"
                busy |= not over and attempt.base == name
            if busy:
                refused.append(Failure("Busy", f"{name} is in use by what has not ended here"))
                continue
            world.snapshots[name] = replace(known, deleting=write.why)
            if job.latest == name:
                world.jobs[write.job] = replace(job, latest="")
            marked.append(name)
        return events.SnapshotsMarked(write.cleaning, tuple(marked), tuple(refused))

    def _weigh(self, write: commands.WeighAttempts) -> events.Event:
        world = self.world
        snapshots = {n: s for n, s in world.snapshots.items() if s.job == write.job}
        dead = [name for name in write.deleting if name in snapshots and snapshots[name].deleting]
        unknown = []
        for name in write.attempts:
            record = world.attempts.get(name)
            if name in snapshots:
                continue
            if record is None:
                unknown.append(name)
            elif record.state in ENDED:
                dead.append(name)
        keep = tuple(KeptImages(n, "d") for n, s in sorted(snapshots.items()) if not s.deleting)
        return events.AttemptsWeighed(write.cleaning, tuple(dead), tuple(unknown), keep)

    def answer_all(self) -> None:
        """Every node does what it was asked, and says so."""
        while self.tasks:
            self.answer(self.tasks.pop(0))

    def answer(self, task: commands.SendTask) -> None:
        """One node does its task, and its answer arrives."""
        self.world.event(self.done(task))

    def done(self, task: commands.SendTask) -> events.TaskAnswered:
        """One node does its task; the answer may get lost."""
        at = (task.epoch, task.node, task.task)
        if self.failure is not None:
            return events.TaskAnswered(*at, failure=self.failure)
        store = self.world.nodes[task.node].facts.store
        if not task.dead:
            there = sorted(a for s, job, a in self.images if (s, job) == (store, task.job))
            return events.TaskAnswered(*at, attempts=tuple(there))
        kept = {each.place for each in task.keep}
        for name, snapshot in self.world.snapshots.items():
            if snapshot.job == task.job and not snapshot.deleting:
                assert name not in task.dead, f"snapshot {name} would be collected"
        gone = {(store, task.job, name) for name in task.dead if name not in kept} & self.images
        if not task.dry_run:
            self.images -= gone
        objects, freed_bytes = len(gone), len(gone) * OBJECT_BYTES
        return events.TaskAnswered(*at, objects=objects, freed_bytes=freed_bytes)
