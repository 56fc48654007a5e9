"""What must always be true, checked from outside: on processes, images, locks and the store.

Nothing here asks a coordinator or a shim for its opinion. A violation ends the run.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from coordinator import codec
from coordinator.core.model import (
    AttemptRecord,
    AttemptState,
    Cut,
    JobRecord,
    RestoreRecord,
    RestoreState,
    Snapshot,
    WorkerRecord,
)
from coordinator.store.keys import Keys, Kind, Place
from coordinator.store.kv import Delete, Put, Range, below
from tests.sim import sick
from tests.sim.keeping import TruthOfKeeping
from tests.sim.tree import Tree, advance
from worker_shim.images import manifest as manifests

if TYPE_CHECKING:
    from tests.sim.world import World

BOUND_S = 45.0  # no worker is held longer, its shim's own freezes left out
ENDED = (AttemptState.COMMITTED, AttemptState.ABORTED)
OVER = (RestoreState.RUNNING, RestoreState.FAILED)
STOPPED_BY = (AttemptState.COMMITTED, AttemptState.STOPPING)


@dataclass
class Dump:
    """What really came of one dump."""

    tree: Tree
    begun: float
    ended: float
    boundaries: dict[int, int]
    nonce: str
    whole: bool  # the images are all there; else the driver lied


@dataclass
class Committed:
    """A snapshot that is in the store."""

    record: Snapshot
    workers: tuple[WorkerRecord, ...]


@dataclass
class Truth:
    """Everything that really is, and every rule about it."""

    world: World
    trees: list[Tree] = field(default_factory=list)
    dumps: dict[tuple[str, int, str], Dump] = field(default_factory=dict)
    unlocked: dict[tuple[str, str], list[float]] = field(default_factory=dict)  # machine, worker
    snapshots: dict[str, Committed] = field(default_factory=dict)
    jobs: dict[str, JobRecord] = field(default_factory=dict)
    attempts: dict[str, AttemptRecord] = field(default_factory=dict)
    restores: dict[str, RestoreRecord] = field(default_factory=dict)
    latest: dict[str, str] = field(default_factory=dict)
    keys: Keys = field(default_factory=Keys)
    stepped: dict[str, float] = field(default_factory=dict)  # job: when a rank last took a step
    verified: set[str] = field(default_factory=set)  # restores that were looked at
    deleted: int = 0  # snapshots

    def __post_init__(self) -> None:
        self.keeping = TruthOfKeeping(self)

    def violated(self, rule: int, what: str) -> None:
        """A rule is broken: say so and end the run."""
        self.world.fail(f"invariant {rule}: {what}")

    def living(self, job: str) -> list[Tree]:
        """Trees of a job that have not ended."""
        return [t for t in self.trees if t.job == job and t.alive]

    def whole(self, job: str) -> list[Tree]:
        """The trees of a lineage that has all its workers; empty where there is none."""
        by_lineage: dict[str, list[Tree]] = {}
        for tree in self.living(job):
            by_lineage.setdefault(tree.lineage, []).append(tree)
        for trees in by_lineage.values():
            if len({t.worker for t in trees}) == trees[0].workers:
                return trees
        return []

    # -- steps (4, 6, 7) --------------------------------------------------------------------------

    def tick(self, job: str, chance: Callable[[], float]) -> None:
        """A moment passes for a job's ranks."""
        now = self.world.loop.now
        self._watch_bound(now)
        moved: set[str] = set()
        for lineage in sorted({t.lineage for t in self.living(job)}):
            trees = [t for t in self.living(job) if t.lineage == lineage]
            locked = {t.name for t in trees if self.world.locked(t)}
            off = {t.name for t in trees if self.world.off_devices(t)}
            if advance(trees, locked, off, now, chance):
                moved.add(lineage)
                self._first_steps(trees)
        if moved:
            self.stepped[job] = now
        if len(moved) > 1:
            self.violated(6, f"{job} takes steps in {sorted(moved)} at once")

    def _first_steps(self, trees: list[Tree]) -> None:
        lineage = trees[0].lineage
        numbers = [t.worker for t in trees]
        if len(numbers) != len(set(numbers)):
            self.violated(6, f"a worker of {trees[0].job} runs twice in {lineage}")
        spread = {b for t in trees for b in t.boundaries.values()}
        if max(spread) - min(spread) > 1:
            self.violated(2, f"ranks of {trees[0].job} are at steps {sorted(spread)}")

    def released(self, tree: Tree) -> None:
        """A rank that was parked is let go only once its device memory is back."""
        if tree.alive and self.world.off_devices(tree):
            self.violated(4, f"{tree} is let go without its devices")

    def _watch_bound(self, now: float) -> None:
        """Nobody is held for ever, whatever has failed."""
        for tree in self.trees:
            if not tree.alive:
                continue
            frozen_s = self.world.shim_frozen_s(tree.machine)
            off = self.world.off_devices(tree)
            if not (tree.stopped or tree.page.hold or self.world.locked(tree) or off):
                tree.bound_since = -1.0
            elif tree.bound_since < 0:
                tree.bound_since, tree.bound_frozen_s = now, frozen_s
            elif now - tree.bound_since - (frozen_s - tree.bound_frozen_s) > BOUND_S:
                held = [
                    "stopped" if tree.stopped else "",
                    "held" if tree.page.hold else "",
                    "locked" if self.world.locked(tree) else "",
                    "off its devices" if off else "",
                ]
                self.violated(4, f"{tree} is {held} for more than {BOUND_S:g} s")

    # -- what happens to trees --------------------------------------------------------------------

    def went_on(self, tree: Tree) -> None:
        """A stopped tree was let go."""
        tree.stopped = False
        tree.went_on.append(self.world.loop.now)

    def may_be_killed(self, tree: Tree) -> None:
        """A shim kills a worker: somebody must have decided that the job loses it."""
        job = self.jobs.get(tree.job)
        own = tree.page.incarnation
        restore = self.restores.get(tree.lineage)
        allowed = (
            own == 0
            or job is None
            or job.incarnation > own
            or (restore is not None and restore.state is not RestoreState.RUNNING)
            or any(
                a.job == tree.job and a.stop and a.state in STOPPED_BY
                for a in self.attempts.values()
            )
            or any(t is not tree and t.worker == tree.worker for t in self.living(tree.job))
            or self.world.machines[tree.machine].leaving
            or self.world.given_up(tree.job)
        )
        if not allowed:
            self.violated(4, f"{tree} is killed, though the job was not to lose it")

    def died(self, tree: Tree) -> None:
        """It is no more."""
        if tree.alive:
            tree.alive, tree.died_at = False, self.world.loop.now

    # -- the store (1, 2, 3) ----------------------------------------------------------------------

    def applied(self, client: str, ops: Sequence[Put | Delete], revision: int) -> None:
        """A transaction went through at the store, whatever its client hears of it."""
        for op in ops:
            place = self.keys.place(op.key)
            if place.kind in (Kind.FOREIGN, Kind.NODE):
                continue
            self._by_leader(client, op.key)
            if isinstance(op, Put):
                self.world.note(f"{client} puts {op.key}")
                self._put(place, op)
            else:
                self.keeping.removed(place)

    def _by_leader(self, client: str, key: str) -> None:
        name = self.world.leader_name()
        if name != client:
            self.violated(3, f"{client} wrote {key} while {name} led")

    def _put(self, place: Place, op: Put) -> None:
        if place.kind is Kind.JOB:
            record = codec.decode(JobRecord, op.value, op.key)
            known = self.jobs.get(place.job)
            if known is not None and record.incarnation < known.incarnation:
                self.violated(3, f"incarnation of {place.job} went back to {record.incarnation}")
            self.jobs[place.job] = record
        elif place.kind is Kind.LATEST:
            self._moves_on(place.job, op.value.decode())
        elif place.kind is Kind.ATTEMPT:
            self._attempt(codec.decode(AttemptRecord, op.value, op.key))
        elif place.kind is Kind.RESTORE:
            self._restore(codec.decode(RestoreRecord, op.value, op.key))
        elif place.kind is Kind.SNAPSHOT:
            snapshot = codec.decode(Snapshot, op.value, op.key)
            if snapshot.snapshot in self.snapshots:
                self.keeping.changed(snapshot)
            else:
                self._committed(snapshot)

    def _moves_on(self, job: str, snapshot: str) -> None:
        before = self.latest.get(job)
        if before is not None and self._began(job, before) > self._began(job, snapshot):
            self.violated(3, f"latest of {job} went back from {before} to {snapshot}")
        if snapshot not in self.snapshots:
            self.violated(3, f"latest of {job} is {snapshot}, which is no snapshot")
        self.latest[job] = snapshot

    def _began(self, job: str, attempt: str) -> int:
        item = self.world.store.kv._now(self.keys.attempt(job, attempt))
        return item.create_revision if item is not None else 0

    def _attempt(self, record: AttemptRecord) -> None:
        before = self.attempts.get(record.attempt)
        if before is not None and before.state in ENDED and record.state is not before.state:
            self.violated(1, f"{record.attempt} was {before.state} and is {record.state}")
        undone = record.state in (AttemptState.ABORTED, AttemptState.ABORTING)
        if undone and record.attempt in self.snapshots:
            self.violated(1, f"{record.attempt} is committed and becomes {record.state}")
        if record.state is AttemptState.PERSISTING:
            self._cut(record)
        self.attempts[record.attempt] = record
        if record.state is not AttemptState.ADMITTING:  # that is undone, whatever it is based on
            self.keeping.used(record.attempt, record.base, over=record.state in ENDED)

    def _cut(self, record: AttemptRecord) -> None:
        """The store says that it was cut: every worker is dumped, and none was let go before."""
        name, spec = record.attempt, self.world.specs[record.job]
        dumps = [self.dumps.get((record.job, worker, name)) for worker in range(spec.workers)]
        if None in dumps:
            self.violated(2, f"{name} is cut while worker {dumps.index(None)} is not dumped")
        self._none_let_go(name, [dump for dump in dumps if dump is not None])

    def _restore(self, record: RestoreRecord) -> None:
        before = self.restores.get(record.restore)
        if before is not None and before.state in OVER and record.state is not before.state:
            self.violated(6, f"{record.restore} was {before.state} and is {record.state}")
        if before is None:
            sick.check_restore(self.world, record)
        self.restores[record.restore] = record
        self.keeping.used(record.restore, record.snapshot, over=record.state in OVER)

    def _committed(self, snapshot: Snapshot) -> None:
        job, spec = snapshot.job, self.world.specs[snapshot.job]
        name = snapshot.snapshot
        begin = self.keys.workers(job, name)
        view = self.world.store.kv._find(Range(begin, below(begin)))
        workers = tuple(codec.decode(WorkerRecord, item.value, item.key) for item in view)
        if sorted(w.worker for w in workers) != list(range(spec.workers)):
            self.violated(1, f"{name} has workers {[w.worker for w in workers]}")
            return
        ranks = sorted(r.rank for w in workers for r in w.ranks)
        if ranks != list(range(spec.world_size)) or snapshot.world_size != spec.world_size:
            self.violated(1, f"{name} has ranks {ranks} of a world of {snapshot.world_size}")
        dumps = [self.dumps.get((job, w.worker, name)) for w in workers]
        if any(dump is None for dump in dumps):
            self.violated(1, f"{name} has workers that were never dumped for it")
            return
        found = [dump for dump in dumps if dump is not None]
        self._one_cut(snapshot, found)
        for worker, dump in zip(workers, found, strict=True):
            self._stored(name, worker, dump)
        sick.check_committed(self.world, snapshot, workers, max(d.ended for d in found))
        self.snapshots[name] = Committed(snapshot, workers)
        self.world.note(f"snapshot {name} is committed at step {snapshot.step}")

    def _one_cut(self, snapshot: Snapshot, dumps: list[Dump]) -> None:
        """Every rank at the step, and none let go or reachable before the last dump was done."""
        if len({dump.tree.lineage for dump in dumps}) > 1:
            self.violated(2, f"{snapshot.snapshot} is of two runs of the job")
        for dump in dumps:
            tree = dump.tree
            if not dump.whole:
                self.violated(1, f"images of {tree} in {snapshot.snapshot} are torn")
            if snapshot.cut is Cut.STEP and set(dump.boundaries.values()) != {snapshot.step}:
                self.violated(1, f"{tree} was dumped at {dump.boundaries}, not {snapshot.step}")
        self._none_let_go(snapshot.snapshot, dumps)
        last = max(dump.ended for dump in dumps)
        for dump in dumps:
            if dump.tree.died_at < last:  # its kernel told its peers, who were dumped later
                self.violated(2, f"{dump.tree} died before the last dump of {snapshot.snapshot}")

    def _none_let_go(self, name: str, dumps: list[Dump]) -> None:
        """No worker ran or was reachable between its own dump and the last one of the cut."""
        last = max((dump.ended for dump in dumps), default=0.0)
        for dump in dumps:
            tree = dump.tree
            if any(dump.begun <= at < last for at in tree.went_on):
                self.violated(2, f"{tree} ran before the last dump of {name}")
            released = self.unlocked.get((tree.machine, tree.name), ())
            if any(dump.begun <= at < last for at in released):
                self.violated(2, f"{tree} was unlocked before the last dump of {name}")

    def _stored(self, name: str, worker: WorkerRecord, dump: Dump) -> None:
        """Every byte is in the image store, hashed, and is what was dumped."""
        published = self.world.images.published.get(worker.manifest)
        if published is None or manifests.digest_of(published[0]) != worker.manifest_digest:
            self.violated(1, f"images of worker {worker.worker} of {name} are not in the store")
            return
        if published[1].get("images/nonce") != dump.nonce.encode():
            self.violated(1, f"images of worker {worker.worker} of {name} are others")

    def may_be_deleted(self, place: str) -> None:
        """Images of a snapshot stay."""
        for name, known in self.snapshots.items():
            if any(w.manifest == place for w in known.workers) and not known.record.deleting:
                self.violated(1, f"images {place} of snapshot {name} are deleted")

    def may_be_shared(self, job: str, base: str) -> None:
        """What a new snapshot shares with its base is there, and stays."""
        known = self.snapshots.get(base)
        if base and (known is None or known.record.deleting):
            self.violated(1, f"something of {job} is based on {base}, which is gone or goes")

    # -- in the end -------------------------------------------------------------------------------

    def check_end(self) -> None:
        """After the healing nothing is under way, held, locked or left behind."""
        for name, record in self.attempts.items():
            if record.state not in ENDED:
                self.violated(7, f"{name} is {record.state} for ever: {record.reason}")
        for name, restore in self.restores.items():
            if restore.state not in OVER:
                self.violated(7, f"{name} is {restore.state} for ever: {restore.reason}")
        for name, known in self.snapshots.items():
            if known.record.deleting:
                self.violated(7, f"snapshot {name} is being deleted for ever")
            for worker in known.workers:
                if worker.manifest not in self.world.images.published:
                    self.violated(1, f"images of worker {worker.worker} of {name} are gone")
        self._nothing_left()

    def _nothing_left(self) -> None:
        for tree in self.trees:
            if tree.alive and (tree.stopped or tree.page.hold or self.world.locked(tree)):
                self.violated(4, f"{tree} is still held in the end")
            if tree.alive and self.world.off_devices(tree):
                self.violated(4, f"{tree} is off its devices in the end")
        for machine in self.world.machines.values():
            if machine.locks:
                self.violated(4, f"locks {sorted(machine.locks)} are left on {machine.name}")
            if left := machine.staged():
                self.violated(4, f"staging of {machine.name} still has {left}")
