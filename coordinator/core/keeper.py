"""The snapshots of all jobs as a leader keeps them: bases, pins, deletions, retention.

What is decided about one snapshot is decided here, under one leader, before anything is written:
nobody begins to use a snapshot that is being deleted, and none is deleted while somebody uses it.
The transactions of the store hold against what only it can know: a pin that was put meanwhile, and
a leader of another epoch.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence

from coordinator.core import events, retention
from coordinator.core.adoption import id_of
from coordinator.core.attempt import Attempt
from coordinator.core.cleaning import NEVER, TRANSITIONS, Cleaning, CleaningState
from coordinator.core.cluster import ATTACHED, Cluster
from coordinator.core.commands import Announce, Command
from coordinator.core.errors import BugError, Busy, NotFound, Refused, Where
from coordinator.core.failures import listed
from coordinator.core.kept import Retention
from coordinator.core.model import AttemptRecord, Snapshot
from coordinator.core.policy import Policy
from coordinator.core.returning import Restore
from coordinator.core.running import AnyRecord, Running
from coordinator.core.shelf import Shelf, busy_with, require_newest_stays
from coordinator.core.table import step

WORDS_MAX = 64  # last announcements of cleanings that are remembered
FIRST_LOOK_S = 30.0  # after the begin of a leadership: its nodes come first

Note = Callable[[str, bool, str, str], None]  # reason, ignored, action, state


class Keeper:
    """Bases, deletions and retention; its answers are commands, as those of `Control`."""

    def __init__(
        self, epoch: int, policy: Policy, cluster: Cluster, running: Running, note: Note
    ) -> None:
        self._epoch = epoch
        self._policy = policy
        self._cluster = cluster
        self._running = running
        self._note = note
        self._shelves: dict[str, Shelf] = {}
        self._words: dict[str, Announce] = {}
        self._number = 0
        self._began = 0.0
        self._began_unix_s = 0.0
        self._look_at = NEVER

    # -- from the store ------------------------------------------------------------------------

    def adopt(
        self,
        snapshots: Sequence[Snapshot],
        policies: Mapping[str, Retention | None],
        *,
        unix_s: float,
        now: float,
    ) -> list[Command]:
        """Take over all snapshots, and go on with what an earlier leader was deleting."""
        self._began, self._began_unix_s = now, unix_s
        self._look_at = now + min(FIRST_LOOK_S, self._policy.retain_s)
        for each in snapshots:
            self._shelf(each.job).snapshots[each.snapshot] = each
        for job, policy in policies.items():
            self._shelf(job).policy = policy
        commands: list[Command] = []
        for job, shelf in self._shelves.items():
            stamps = [each.committed_unix_s for each in shelf.snapshots.values()]
            shelf.found_unix_s = max(stamps, default=0.0)
            dying = tuple(s.snapshot for s in shelf.snapshots.values() if s.deleting)
            if dying:
                why = shelf.snapshots[dying[0]].deleting
                commands += self._start(self._made(job, now, why, snapshots=dying), now)
        return commands

    def committed(self, snapshot: Snapshot | None, now: float) -> list[Command]:
        """A snapshot is in the store."""
        if snapshot is None:
            return []
        self._shelf(snapshot.job).snapshots[snapshot.snapshot] = snapshot
        return []

    def changed(self, event: events.SnapshotChanged, now: float) -> list[Command]:
        """How a snapshot is kept was recorded; one that is being deleted stays that."""
        shelf = self._shelf(event.snapshot.job)
        if event.snapshot.snapshot in shelf.snapshots:
            shelf.snapshots[event.snapshot.snapshot] = event.snapshot
        return []

    # -- who uses what -------------------------------------------------------------------------

    def base(self, job: str, stores: Collection[str]) -> str:
        """The newest whole snapshot that is in all of these stores and stays; empty: none is."""
        for each in reversed(self._shelf(job).kept()):
            if each.stores and not each.damaged and set(stores) <= set(each.stores):
                return each.snapshot
        return ""

    def require_kept(self, job: str, snapshot: str) -> None:
        """Raise Refused for a snapshot that is being deleted: nobody begins to restore it."""
        if snapshot in self._shelf(job).held:
            raise Refused(
                f"snapshot {snapshot} is being deleted",
                where=Where(job=job),
                advice=f"`allstop snapshots {job}` lists what can be restored",
            )

    def damage(self, job: str, snapshot: str) -> str:
        """What was found broken in a snapshot; empty: nothing is known."""
        found = self._shelf(job).snapshots.get(snapshot)
        return found.damaged if found is not None else ""

    def suspicion(self, job: str, snapshot: str) -> str:
        """Why what is in a snapshot may be wrong; empty: nothing is known."""
        found = self._shelf(job).snapshots.get(snapshot)
        return found.suspect if found is not None else ""

    def user_of(self, job: str, snapshot: str) -> str:
        """Who needs a snapshot to stay for now, in words; empty: nobody."""
        for action in self._running.of_job(job):
            if isinstance(action, Restore) and action.snapshot_id == snapshot:
                return f"restore {action.id} is {action.state} with it"
            if isinstance(action, Attempt) and action.base == snapshot:
                return f"attempt {action.id} is {action.state} and shares its stored bytes"
            if action.id == snapshot:
                return f"attempt {action.id}, which made it, is still {action.state}"
        return ""

    # -- requests ------------------------------------------------------------------------------

    def delete(self, event: events.DeletionRequested, now: float) -> list[Command]:
        """Begin to delete snapshots; raises Refused naming what stands against it."""
        shelf = self._shelf(event.job)
        for name in event.snapshots:
            self._require_deletable(shelf, event, name)
        job = self._cluster.jobs.get(event.job)
        require_newest_stays(shelf, event, job.latest if job is not None else "")
        made = self._made(event.job, now, event.why, wanted=event.snapshots)
        made.id, made.latest_too = event.cleaning, event.force
        return self._start(made, now)

    def collect(self, event: events.CollectionRequested, now: float) -> list[Command]:
        """Begin to remove what ended attempts have left; raises Busy."""
        busy = self._shelf(event.job).cleaning
        if busy is not None:
            raise busy_with(busy)
        made = self._made(event.job, now, "an operator asked for it")
        made.id, made.dry_run, made.unknown = event.cleaning, event.dry_run, event.unknown
        return self._start(made, now)

    def _require_deletable(self, shelf: Shelf, event: events.DeletionRequested, name: str) -> None:
        where, known = Where(job=event.job), shelf.snapshots.get(name)
        if known is None:
            advice = f"`allstop snapshots {event.job}` lists them"
            raise NotFound(f"job {event.job} has no snapshot {name}", where=where, advice=advice)
        if name in shelf.held:
            raise Busy(f"snapshot {name} is being deleted already", where=where)
        if known.pinned:
            raise Refused(
                f"snapshot {name} is pinned: {known.pinned}",
                where=where,
                advice=f"`allstop unpin {name}` first",
            )
        user = self.user_of(event.job, name)
        if user:
            raise Busy(
                f"snapshot {name} is in use: {user}",
                where=where,
                advice="wait until that is over, or give it up with `allstop abort`",
            )
        if shelf.cleaning is not None and shelf.cleaning.state is not CleaningState.WAITING:
            raise busy_with(shelf.cleaning)

    # -- retention -----------------------------------------------------------------------------

    def set_policy(self, event: events.RetentionChanged, now: float) -> list[Command]:
        """Other rules hold from now on."""
        self._shelf(event.job).policy = event.retention
        return self.apply(event.job, now)

    def policy(self, job: str) -> Retention | None:
        """The rules of a job."""
        return self._shelf(job).policy

    def going(self, job: str, policy: Retention | None, now: float) -> tuple[retention.Going, ...]:
        """What these rules let go of, were they applied now."""
        shelf, known = self._shelf(job), self._cluster.jobs.get(job)
        unix_s = self._began_unix_s + now - self._began
        judged = retention.judged_now(unix_s, shelf.found_unix_s, now - self._began)
        return retention.going(shelf.kept(), known.latest if known else "", policy, judged)

    def apply(self, job: str, now: float) -> list[Command]:
        """Let go of what the rules let go of, but for what somebody uses; that waits."""
        shelf = self._shelf(job)
        busy = shelf.cleaning
        if shelf.policy is None or (busy is not None and busy.state is not CleaningState.WAITING):
            return []
        free = [
            each
            for each in self.going(job, shelf.policy, now)
            if not self.user_of(job, each.snapshot)
        ]
        if not free:
            return []
        for each in free:
            self._note(f"{each.snapshot} goes: {each.why}", False, "", "")
        why = f"the retention of the job ({retention.told(shelf.policy)})"
        wanted = tuple(each.snapshot for each in free)
        return self._start(self._made(job, now, why, wanted=wanted), now)

    # -- cleanings -----------------------------------------------------------------------------

    def stores(self) -> tuple[str, ...]:
        """Every store that a node in reach sees, sorted."""
        nodes = self._cluster.nodes.values()
        return tuple(
            sorted({n.facts.store for n in nodes if n.state == ATTACHED and n.facts.store})
        )

    def all_seeing(self, store: str) -> tuple[str, ...]:
        """Nodes in reach that see a store, by name."""
        nodes = self._cluster.nodes.items()
        found = (n for n, node in nodes if (node.state, node.facts.store) == (ATTACHED, store))
        return tuple(sorted(found))

    def seeing(self, store: str) -> str:
        """Of these the one that has the fewest workers; empty: there is none."""
        nodes = self._cluster.nodes
        found = [(len(nodes[name].workers), name) for name in self.all_seeing(store)]
        return min(found)[1] if found else ""

    def knows(self, cleaning: str) -> bool:
        """Whether this is the id of a cleaning, be it over."""
        return cleaning in self._words or self._find(cleaning) is not None

    def word(self, cleaning: str) -> Announce | None:
        """The newest announcement about a cleaning."""
        return self._words.get(cleaning)

    def troubles(self, job: str) -> tuple[str, ...]:
        """What stands in the way of a deletion, for whoever looks at the job."""
        cleaning = self._shelf(job).cleaning
        if cleaning is None or cleaning.state is not CleaningState.WAITING:
            return ()
        return (f"{listed(list(cleaning.snapshots))} being deleted: {cleaning.reason}",)

    def about(self, cleaning: str, event: events.Event, now: float) -> list[Command]:
        """An answer for a cleaning."""
        found = self._find(cleaning)
        if found is None:
            self._note(f"{cleaning} is over, or another leader's", True, cleaning, "")
            return []
        return self._step(found, event, now)

    def answered(self, event: events.TaskAnswered, now: float) -> list[Command]:
        """What came of a task."""
        return self.about(event.task.rpartition(".")[0], event, now)

    def nodes_changed(
        self, event: events.NodeAttached | events.NodeLost | events.NodeLeft, now: float
    ) -> list[Command]:
        """A node came or went."""
        attached = isinstance(event, events.NodeAttached)
        commands: list[Command] = []
        for cleaning in self._all():
            waits = cleaning.state is CleaningState.WAITING
            if waits if attached else cleaning.node == getattr(event, "node", ""):
                commands += self._step(cleaning, event, now)
        return commands

    def on_time(self, event: events.TimePassed, now: float) -> list[Command]:
        """Deadlines of cleanings, and the slow look at every job's retention."""
        commands: list[Command] = []
        for cleaning in self._all():
            if now >= cleaning.deadline:
                commands += self._step(cleaning, event, now)
        if now >= self._look_at:
            self._look_at = now + self._policy.retain_s
            for job in list(self._shelves):
                commands += self.apply(job, now)
        return commands

    def next_wakeup(self) -> float | None:
        """When `on_time` has something to do at the latest; None: nobody knows a snapshot."""
        looks = [self._look_at] if any(s.policy for s in self._shelves.values()) else []
        times = [*looks, *(cleaning.deadline for cleaning in self._all())]
        return min((when for when in times if when != NEVER), default=None)

    def validate(self) -> None:
        """Raise BugError where somebody uses a snapshot that is being deleted."""
        for job, shelf in self._shelves.items():
            for name in shelf.held:
                user = self.user_of(job, name)
                if user:
                    raise BugError(f"snapshot {name} is being deleted, and {user}")

    # -- inside --------------------------------------------------------------------------------

    def _shelf(self, job: str) -> Shelf:
        return self._shelves.setdefault(job, Shelf())

    def _all(self) -> list[Cleaning]:
        return [s.cleaning for s in self._shelves.values() if s.cleaning is not None]

    def _find(self, cleaning: str) -> Cleaning | None:
        return next((each for each in self._all() if each.id == cleaning), None)

    def _made(
        self,
        job: str,
        now: float,
        why: str,
        *,
        wanted: tuple[str, ...] = (),
        snapshots: tuple[str, ...] = (),
    ) -> Cleaning:
        """A cleaning that takes along what one that waits has marked."""
        shelf = self._shelf(job)
        if shelf.cleaning is not None:
            snapshots = (*shelf.cleaning.snapshots, *snapshots)
        of = [shelf.snapshots[each] for each in (*wanted, *snapshots) if each in shelf.snapshots]
        self._number += 1
        return Cleaning(
            id=f"{job}-cleaning-{self._epoch}-{self._number}",
            job=job,
            epoch=self._epoch,
            policy=self._policy,
            reach=self,
            started=now,
            why=why,
            wanted=wanted,
            users=self._users_of(job, wanted),
            snapshots=snapshots,
            stores=tuple(sorted({store for each in of for store in each.stores})),
        )

    def _users_of(self, job: str, snapshots: Collection[str]) -> tuple[str, ...]:
        """Attempts and restores that have used one: over here, but perhaps not in the store.

        What a leader has given up without being able to record that the next one goes on with.
        """
        of_job = (record for record in self._running.records() if record.job == job)
        return tuple(id_of(record) for record in of_job if _used(record) in snapshots)

    def _start(self, cleaning: Cleaning, now: float) -> list[Command]:
        self._shelf(cleaning.job).cleaning = cleaning
        return self._after(cleaning, cleaning.begin(now), now)

    def _step(self, cleaning: Cleaning, event: events.Event, now: float) -> list[Command]:
        commands = step(TRANSITIONS, cleaning, event, now)
        if isinstance(event, events.SnapshotsMarked):
            self._forget_latest(cleaning)
        return self._after(cleaning, commands, now)

    def _forget_latest(self, cleaning: Cleaning) -> None:
        job = self._cluster.jobs.get(cleaning.job)
        if job is not None and job.latest in cleaning.snapshots:
            job.latest, job.latest_unix_s = "", 0.0

    def _after(self, cleaning: Cleaning, commands: list[Command], now: float) -> list[Command]:
        for reason, ignored in cleaning.said:
            self._note(reason, ignored, cleaning.id, str(cleaning.state))
        cleaning.said.clear()
        for command in commands:
            if isinstance(command, Announce):
                self._words[command.action] = command
        while len(self._words) > WORDS_MAX:
            self._words.pop(next(iter(self._words)))
        if not cleaning.ended:
            return commands
        shelf = self._shelf(cleaning.job)
        shelf.cleaning = None
        if cleaning.state is CleaningState.DONE:
            for name in cleaning.snapshots:
                shelf.snapshots.pop(name, None)
            return commands + self.apply(cleaning.job, now)
        return commands


def _used(record: AnyRecord) -> str:
    return record.base if isinstance(record, AttemptRecord) else record.snapshot
