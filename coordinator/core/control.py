"""The door of the core: events go in, commands come out, and nothing else changes its state.

What comes for no running action is met here: events of an older session of a node, answers to
another leader's orders, answers about an action that has ended. They change nothing and the
journal says why. Everything else goes through the tables of `checkpoint` and `restore`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from coordinator.core import checkpoint, events, restore
from coordinator.core.admission import admit_attempt, admit_restore
from coordinator.core.adoption import HAVE_ENDED, Heir, id_of
from coordinator.core.attempt import Attempt
from coordinator.core.cluster import ATTACHED, LEFT, LOST, Cluster, Stale
from coordinator.core.commands import Announce, Command, FenceWorkers, Refuse, SendOrder
from coordinator.core.errors import (
    AllstopError,
    BugError,
    Busy,
    IllegalEvent,
    Where,
)
from coordinator.core.events import Event
from coordinator.core.failures import failure_of
from coordinator.core.journal import Decision, Journal, cause_of
from coordinator.core.model import (
    AttemptRecord,
    AttemptState,
    JobRecord,
    NodeFacts,
    Phase,
    RestoreRecord,
    RestoreState,
    Snapshot,
    WorkerState,
)
from coordinator.core.planner import Planned, plan
from coordinator.core.policy import Policy
from coordinator.core.returning import Restore
from coordinator.core.running import AnyAction, AnyRecord, Running
from coordinator.core.table import step
from coordinator.core.view import JobView, NodeView, job_views, node_views

HELD = frozenset({"held", "stopped", "restored"})


class Control:
    """All decisions of one leader, from its election to its end.

    Times are monotonic seconds of the caller. One event at a time; a call never blocks.
    """

    def __init__(self, *, epoch: int, coordinator: str, policy: Policy | None = None) -> None:
        """Begin with nothing known; `adopt` what the store holds before the first event."""
        self.epoch = epoch
        self.coordinator = coordinator
        self.policy = policy or Policy()
        self._cluster = Cluster(self.policy.lost_limit)
        self._journal = Journal(self.policy.journal_limit)
        self._running = Running(self.policy.ended_limit)
        self._now = 0.0
        self._cause = ""

    # -- events --------------------------------------------------------------------------------

    def adopt(
        self,
        *,
        jobs: Sequence[JobRecord],
        attempts: Sequence[AttemptRecord],
        restores: Sequence[RestoreRecord],
        now: float,
    ) -> list[Command]:
        """Take over what an earlier leader left: unfinished attempts are undone, restores failed.

        For an attempt found in COMMITTING the caller reads the store and then hands in
        SnapshotCommitted or CommitRefused. Finished records are taken too and only remembered.
        """
        self._now, self._cause = now, "adopted from the store"
        for job in jobs:
            self._cluster.load(job)
        commands: list[Command] = []
        heir = Heir(self.epoch, self.coordinator, self.policy, now)
        found: tuple[AnyRecord, ...] = (*attempts, *restores)
        for record in found:
            if record.state in HAVE_ENDED:
                self._running.remember(id_of(record), record)
                continue
            known = self._cluster.jobs.get(record.job)
            action, first = heir.take(record, known.workers if known else 0)
            self._running.add(action)
            if isinstance(action, Restore):
                self._cluster.raise_incarnation(action.job, action.incarnation)
            commands += self._after(action, first)
        return commands

    def handle(self, event: Event, now: float) -> list[Command]:
        """Decide on one event and return what is to be done, in this order.

        Late, duplicate and foreign events return nothing and are noted in the journal. Raises
        IllegalEvent, with nothing changed, for an event that cannot be.
        """
        meet = _DOOR.get(type(event))
        if meet is None:
            raise IllegalEvent(f"the core does not know the event {type(event).__name__}")
        self._now = max(self._now, now)
        self._cause = cause_of(event)
        return meet(self, event)

    def next_wakeup(self) -> float | None:
        """When to hand in TimePassed at the latest; None while nothing is awaited."""
        return self._running.next_wakeup()

    # -- nodes and workers ---------------------------------------------------------------------

    def _attached(self, event: events.NodeAttached) -> list[Command]:
        name = event.facts.node
        commands: list[Command] = []
        known = self._cluster.nodes.get(name)
        if known is not None and known.state == ATTACHED:
            same = known.session == event.session
            why = "its stream was opened anew" if same else "another shim process took its place"
            commands += self._gone(events.NodeLost(name, known.session, why))
        stale = self._cluster.attach(event)
        self._note(f"{name} is attached with {len(event.workers)} workers")
        fenced = {(s.job, s.worker) for s, _ in stale}
        for action in self._running.all():
            if action.workers_on(name) or any(w.job == action.job for w in event.workers):
                commands += self._step(action, event)
        for state in event.workers:
            if (state.job, state.worker) not in fenced:
                commands += self._let_go(name, state)
        return commands + self._fence(name, stale)

    def _let_go(self, node: str, state: WorkerState) -> list[Command]:
        """A worker that is held for an action that is over (or unknown here) is told to run."""
        if state.state not in HELD or not state.action or state.action in self._running:
            return []
        reason = f"worker {state.worker} on {node} is held by {state.action}, which is over"
        self._note(reason)
        return [
            SendOrder(
                node=node,
                epoch=self.epoch,
                job=state.job,
                worker=state.worker,
                action=state.action,
                phase=Phase.UNDO,
                deadline_s=self.policy.undo_s,
                reason=reason,
                kill=state.state == "restored",
                incarnation=state.incarnation,
            )
        ]

    def _fence(self, node: str, stale: Sequence[Stale]) -> list[Command]:
        if not stale:
            return []
        reason = "; ".join(dict.fromkeys(why for _, why in stale))
        self._note(f"{node} is fenced: {reason}")
        return [FenceWorkers(node, reason, tuple(state for state, _ in stale))]

    def _reported(self, event: events.NodeReported) -> list[Command]:
        if not self._current(event.node, event.session):
            return []
        stale = self._cluster.report(event)
        commands: list[Command] = []
        for state in event.workers:
            for action in self._running.of_job(state.job):
                member = action.members.get(state.worker)
                if member is not None and member.node == event.node:
                    action.observe(state.worker, state.ranks)
        for action in self._running.all():
            if isinstance(action, Restore) and action.awaits_reports_of(event.node):
                commands += self._step(action, event)
        return commands + self._fence(event.node, stale)

    def _gone(self, event: events.NodeLost | events.NodeLeft) -> list[Command]:
        if not self._current(event.node, event.session):
            return []
        state = LOST if isinstance(event, events.NodeLost) else LEFT
        self._cluster.lose(event.node, state, event.reason)
        self._note(f"{event.node} is {state}: {event.reason}")
        commands: list[Command] = []
        for action in self._running.all():
            if action.concerns(event.node):
                commands += self._step(action, event)
        return commands

    def _current(self, node: str, session: str) -> bool:
        known = self._cluster.nodes.get(node)
        if known is None or known.session != session:
            self._note(f"{node} speaks in session {session}, which is not its present one", True)
            return False
        if known.state != ATTACHED:
            self._note(f"{node} is {known.state} already", True)
            return False
        return True

    def _worker_exited(self, event: events.WorkerExited) -> list[Command]:
        if not self._cluster.attached(event.node):
            self._note(f"{event.node} is not attached", True)
            return []
        self._cluster.exited(event)
        self._note(f"worker {event.worker} on {event.node} exited with {event.exit_code}")
        commands: list[Command] = []
        for action in self._running.of_job(event.job):
            if action.cares_about_exit(event):
                commands += self._step(action, event)
        return commands

    # -- requests ------------------------------------------------------------------------------

    def _checkpoint_requested(self, event: events.CheckpointRequested) -> list[Command]:
        if self._known(event.attempt):
            return []
        try:
            self._refuse_busy(event.job)
            attempt = admit_attempt(self._cluster, event, self.epoch, self.policy, self._now)
        except AllstopError as error:
            return self._refuse(event.attempt, error.at(job=event.job))
        self._running.add(attempt)
        return self._after(attempt, attempt.begin(self._now))

    def _restore_requested(self, event: events.RestoreRequested) -> list[Command]:
        if self._known(event.restore):
            return []
        try:
            self._refuse_busy(event.job)
            made = admit_restore(self._cluster, event, self.epoch, self.policy, self._now)
        except AllstopError as error:
            return self._refuse(event.restore, error.at(job=event.job))
        self._running.add(made)
        return self._after(made, made.begin(self._now))

    def _known(self, action: str) -> bool:
        if self._running.record(action) is not None:
            self._note("that request was taken before", True, action)
            return True
        return False

    def _refuse_busy(self, job: str) -> None:
        for action in self._running.of_job(job):
            kind = "attempt" if isinstance(action, Attempt) else "restore"
            raise Busy(
                f"{kind} {action.id} has the job and is {action.state}",
                where=Where(job=job),
                advice=f"wait for it, or `allstop abort {action.id}`",
            )

    def _refuse(self, action: str, error: AllstopError) -> list[Command]:
        self._note(f"refused: {error.what}", False, action)
        return [Refuse(action, failure_of(error))]

    # -- answers and time ----------------------------------------------------------------------

    def _answered(self, event: events.OrderAnswered) -> list[Command]:
        if event.epoch != self.epoch:
            self._note(f"it answers epoch {event.epoch}; this leader is {self.epoch}", True)
            return []
        if not self._cluster.attached(event.node):
            self._note(f"{event.node} is not attached", True, event.action)
            return []
        return self._about(event.action, event, event.job)

    def _about(self, name: str, event: Event, job: str = "") -> list[Command]:
        """Take an event to the action it names, if that runs here."""
        action = self._running.get(name)
        if action is None:
            ended = self._running.ended(name)
            why = f"{name} has ended as {ended.state}" if ended else f"nothing is known of {name}"
            self._note(why, True, name)
            return []
        if job and job != action.job:
            self._note(f"{name} is of job {action.job}, not of {job}", True, name)
            return []
        return self._step(action, event)

    def _committed(self, event: events.SnapshotCommitted) -> list[Command]:
        action = self._running.get(event.snapshot)
        commands = self._about(event.snapshot, event)
        job = self._cluster.jobs.get(action.job) if action is not None else None
        if action is not None and job is not None:
            job.latest = event.snapshot
            job.latest_unix_s = action.unix_s + (self._now - action.started)
        return commands

    def _restore_admitted(self, event: events.RestoreAdmitted) -> list[Command]:
        ended = self._running.ended(event.restore)
        if isinstance(ended, RestoreRecord):
            self._cluster.raise_incarnation(ended.job, ended.incarnation)
        action = self._running.get(event.restore)
        commands = self._about(event.restore, event)
        if action is not None:
            self._cluster.raise_incarnation(action.job, action.incarnation)
        return commands

    def _job_loaded(self, event: events.JobLoaded) -> list[Command]:
        self._cluster.load(event.record)
        self._note(f"job {event.record.job} is at incarnation {event.record.incarnation}")
        return []

    def _time_passed(self, event: events.TimePassed) -> list[Command]:
        commands: list[Command] = []
        for action in self._running.all():
            if action.overdue(self._now):
                commands += self._step(action, event)
        return commands

    # -- actions -------------------------------------------------------------------------------

    def _step(self, action: AnyAction, event: Event) -> list[Command]:
        if isinstance(action, Attempt):
            return self._after(action, step(checkpoint.TRANSITIONS, action, event, self._now))
        return self._after(action, step(restore.TRANSITIONS, action, event, self._now))

    def _after(self, action: AnyAction, commands: list[Command]) -> list[Command]:
        """Keep what was said, and put the action away when it has ended."""
        for reason, ignored in action.said:
            self._note(reason, ignored, action.id, str(action.state))
        action.said.clear()
        self._running.listen(commands)
        if action.ended:
            self._running.end(action)
            if isinstance(action, Restore) and action.state is RestoreState.RUNNING:
                for state in action.restored_workers():
                    self._cluster.place(state, action.members[state.worker].node)
        return commands

    def _note(self, reason: str, ignored: bool = False, action: str = "", state: str = "") -> None:
        self._journal.note(Decision(self._now, action, self._cause, reason, state, ignored))

    # -- questions -----------------------------------------------------------------------------

    def plan(self, snapshot: Snapshot, files: Sequence[NodeFacts] = ()) -> Planned:
        """Say where a snapshot would go now, or why nowhere, without doing it."""
        return plan(snapshot, self._cluster.candidates(snapshot.job, files))

    def jobs(self) -> tuple[JobView, ...]:
        """All jobs, by name."""
        return job_views(self._cluster, self._running.first_by_job())

    def nodes(self) -> tuple[NodeView, ...]:
        """All nodes, by name, those lost and left included."""
        return node_views(self._cluster)

    def attempts(self) -> tuple[AttemptRecord, ...]:
        """Running and remembered attempts, newest last."""
        return tuple(r for r in self._running.records() if isinstance(r, AttemptRecord))

    def restores(self) -> tuple[RestoreRecord, ...]:
        """Running and remembered restores, newest last."""
        return tuple(r for r in self._running.records() if isinstance(r, RestoreRecord))

    def attempt(self, attempt: str) -> AttemptRecord | None:
        """One running or remembered attempt."""
        found = self._running.record(attempt)
        return found if isinstance(found, AttemptRecord) else None

    def restore(self, restore: str) -> RestoreRecord | None:
        """One running or remembered restore."""
        found = self._running.record(restore)
        return found if isinstance(found, RestoreRecord) else None

    def last_word(self, action: str) -> Announce | None:
        """The newest announcement about an action; `last` is set when it has ended."""
        return self._running.word(action)

    def story(self, action: str = "") -> tuple[Decision, ...]:
        """Why things were decided as they were, oldest first; all of it, or one action's."""
        return self._journal.story(action)

    def validate(self) -> None:
        """Raise BugError when an invariant is broken; tests call it after every event."""
        self._running.validate()
        for action in self._running.all():
            for waiting in action.rounds.values():
                self._validate_round(action, waiting.awaited.values())
        self._cluster.validate()

    def _validate_round(self, action: AnyAction, awaited: Iterable[Any]) -> None:
        adopted = action.state in (AttemptState.ABORTING, RestoreState.FAILING)
        for member in awaited:
            if not self._cluster.attached(member.node) and not (adopted and action.adopted):
                raise BugError(f"{action.id} awaits {member}, which is out of reach")


_DOOR: Mapping[type[Event], Callable[[Control, Any], list[Command]]] = {
    events.NodeAttached: Control._attached,
    events.NodeReported: Control._reported,
    events.NodeLost: Control._gone,
    events.NodeLeft: Control._gone,
    events.WorkerExited: Control._worker_exited,
    events.CheckpointRequested: Control._checkpoint_requested,
    events.RestoreRequested: Control._restore_requested,
    events.AbortRequested: lambda c, e: c._about(e.action, e),
    **dict.fromkeys(events.OrderAnswered.__subclasses__(), Control._answered),
    events.AttemptStored: lambda c, e: c._about(e.attempt, e),
    events.SnapshotCommitted: Control._committed,
    events.CommitRefused: lambda c, e: c._about(e.snapshot, e),
    events.RestoreAdmitted: Control._restore_admitted,
    events.RestoreStored: lambda c, e: c._about(e.restore, e),
    events.StoreRefused: lambda c, e: c._about(e.action, e),
    events.JobLoaded: Control._job_loaded,
    events.TimePassed: Control._time_passed,
}
