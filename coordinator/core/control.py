"""The door of the core: events go in, commands come out, and nothing else changes its state.

What comes for no running action is met here: events of an older session of a node, answers to
another leader's orders, answers about an action that has ended. They change nothing and the
journal says why. Everything else goes through the tables of `checkpoint` and `restore`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from coordinator.core import checkpoint, drain_events, events, health_events, homes, restore
from coordinator.core.action import FOREVER
from coordinator.core.adoption import HAVE_ENDED, Heir, id_of, later
from coordinator.core.arrivals import put
from coordinator.core.attempt import Attempt
from coordinator.core.cluster import Cluster
from coordinator.core.commands import (
    Command,
)
from coordinator.core.drain_records import DrainRecord
from coordinator.core.draining import Means
from coordinator.core.errors import (
    AllstopError,
    IllegalEvent,
)
from coordinator.core.events import Event
from coordinator.core.health_rules import HealthRules
from coordinator.core.job_policy import JobHistory, JobPolicy, JobRecovery
from coordinator.core.journal import Decision, Journal, cause_of
from coordinator.core.keeper import Keeper
from coordinator.core.model import (
    AttemptRecord,
    JobRecord,
    RestoreRecord,
    RestoreState,
    Snapshot,
)
from coordinator.core.owed import Owed, stops
from coordinator.core.pace import Pace
from coordinator.core.policy import Policy
from coordinator.core.requests import Requests
from coordinator.core.returning import Restore
from coordinator.core.running import AnyAction, AnyRecord, Running
from coordinator.core.runs import Runs
from coordinator.core.standing_orders import StandingOrders
from coordinator.core.table import step


class Control(Requests):
    """All decisions of one leader, from its election to its end.

    Times are monotonic seconds of the caller. One event at a time; a call never blocks.
    """

    def __init__(
        self,
        *,
        epoch: int,
        coordinator: str,
        policy: Policy | None = None,
        health: HealthRules | None = None,
    ) -> None:
        """Begin with nothing known; `adopt` what the store holds before the first event."""
        self.epoch = epoch
        self.coordinator = coordinator
        self.policy = policy or Policy()
        self._cluster = Cluster(self.policy.lost_limit)
        self._journal = Journal(self.policy.journal_limit)
        self._running = Running(self.policy.ended_limit)
        self._runs = Runs(self._cluster, self.policy, self._note)
        self._owed = Owed(self.policy.ended_limit)
        self._pace = Pace(self.policy.lost_limit)
        self._standing = StandingOrders(
            self._cluster,
            self._running,
            self._note,
            Means(self._pace, self.policy, epoch),
            health or HealthRules(),
            lambda job, snapshot: self._keeper.suspicion(job, snapshot),
        )
        self._keeper = Keeper(epoch, self.policy, self._cluster, self._running, self._note)
        self._problems: dict[str, list[str]] = {}
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
        latest_unix_s: Mapping[str, float] | None = None,
        unix_s: float = 0.0,
        damaged: Sequence[AllstopError] = (),
        policies: Sequence[JobPolicy] = (),
        histories: Sequence[JobHistory] = (),
        recoveries: Sequence[JobRecovery] = (),
        drains: Sequence[DrainRecord] = (),
        snapshots: Sequence[Snapshot] = (),
    ) -> list[Command]:
        """Take over what an earlier leader left; see `adoption`.

        `latest_unix_s`: when each job's newest snapshot was committed, `unix_s`: what the clock
        says now; where the two do not agree, a checkpoint is due too early. Of finished records
        it is remembered how they ended and what is owed. `damaged`: values that could not be
        read, each with its job and key; they are shown with the job. `snapshots` in the order of
        their commits.
        """
        self._now, self._cause = now, "adopted from the store"
        for error in damaged:
            self._problem(error.where.job, error.what)
        sure_at = now + self.policy.adopt_s
        for job in jobs:
            committed = (latest_unix_s or {}).get(job.job, 0.0)
            self._cluster.load(job, sure_at=sure_at, latest_unix_s=committed)
            if committed and unix_s:
                self._standing.saved_before(job.job, unix_s - committed, now)
        commands: list[Command] = []
        heir = Heir(self.epoch, self.coordinator, self.policy, now, self._standing.suspicion)
        found: tuple[AnyRecord, ...] = (*attempts, *restores)
        ended = [record for record in found if record.state in HAVE_ENDED]
        self._standing.adopt(policies, histories, recoveries, drains, ended, unix_s=unix_s, now=now)
        for record in found:
            if record.epoch >= self.epoch:
                self._problem(record.job, later(record, self.epoch))
                continue
            if record.state in HAVE_ENDED:
                self._remember(record)
                continue
            action, first = heir.take(record)
            self._running.add(action)
            if isinstance(action, Restore):
                self._cluster.raise_incarnation(action.job, action.incarnation)
                self._runs.spare(action)
            commands += self._after(action, first)
        homes.remember(self._cluster.jobs, ended)
        retentions = {job.job: job.retention for job in jobs}
        return commands + self._keeper.adopt(snapshots, retentions, unix_s=unix_s, now=now)

    def _remember(self, record: AnyRecord) -> None:
        """How an action of an earlier leader has ended."""
        self._running.remember(id_of(record), record)
        self._owed.owe(record)
        if isinstance(record, RestoreRecord):
            self._cluster.replaced(record)
            return
        self._pace.note(record)
        if stops(record):
            self._cluster.stopped(record)

    def _problem(self, job: str, what: str) -> None:
        if job:
            self._problems.setdefault(job, []).append(what)
        self._note(f"left alone: {what}")

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
        decided = meet(self, event)
        decided += self._standing.decided(decided, self._now)
        return decided + self._standing.look(self._now)

    def next_wakeup(self) -> float | None:
        """When to hand in TimePassed at the latest; None while nothing is awaited."""
        wakeups = (
            self._running.next_wakeup(),
            self._standing.next_wakeup(),
            self._keeper.next_wakeup(),
        )
        return min((when for when in wakeups if when is not None), default=None)

    def held_until(self, action: str) -> float | None:
        """When the first dead-man timer of a running action may run out; None: nothing is held."""
        running = self._running.get(action)
        rounds = running.rounds.values() if running is not None else ()
        return min((each.sure_until for each in rounds if each.held_until != FOREVER), default=None)

    # -- answers and time ----------------------------------------------------------------------

    def _answered(self, event: events.OrderAnswered) -> list[Command]:
        if event.epoch != self.epoch:
            self._note(f"it answers epoch {event.epoch}; this leader is {self.epoch}", True)
            return []
        if not self._cluster.attached(event.node):
            self._note(f"{event.node} is not attached", True, event.action)
            return []
        commands: list[Command] = []
        if isinstance(event, events.Undone | events.Stopped):
            commands += self._paid(event.node, event.job, event.worker, event.action)
        return commands + self._about(event.action, event, event.job)

    def _paid(self, node: str, job: str, worker: int, action: str) -> list[Command]:
        record = self._owed.paid(node, job, worker, action)
        if record is None:
            return []
        self._running.remember(action, record)
        self._note("nobody owes it anything any more", False, action, str(record.state))
        return [put(record)]

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
        if action is not None and job is not None and event.newest:
            job.latest = event.snapshot
            job.latest_unix_s = action.unix_s + (self._now - action.started)
        if isinstance(action, Attempt):
            commands += self._keeper.committed(action.snapshot, self._now)
            commands += self._keeper.apply(action.job, self._now)
        return commands

    def _restore_admitted(self, event: events.RestoreAdmitted) -> list[Command]:
        ended = self._running.ended(event.restore)
        action = self._running.get(event.restore)
        commands = self._about(event.restore, event)
        if isinstance(action, Restore):
            old = action.old_incarnation
            self._cluster.raise_incarnation(action.job, action.incarnation, floor=old)
        if isinstance(ended, RestoreRecord):  # it had been given up before the store answered
            old = ended.incarnation - 1
            self._cluster.raise_incarnation(ended.job, ended.incarnation, floor=old)
            commands += self._runs.given_up(ended.job, ended.incarnation)
            for begun in self._running.of_job(ended.job):  # the store would refuse its commit
                why = f"{ended.restore} was recorded late and raised the job's incarnation"
                commands += self._step(begun, events.AbortRequested(begun.id, why))
        return commands

    def _store_refused(self, event: events.StoreRefused) -> list[Command]:
        if self._keeper.knows(event.action):
            return self._keeper.about(event.action, event, self._now)
        return self._about(event.action, event)

    def _task_answered(self, event: events.TaskAnswered) -> list[Command]:
        if event.epoch != self.epoch or not self._cluster.attached(event.node):
            self._note(f"task {event.task} is of epoch {event.epoch}, or of a lost node", True)
            return []
        return self._keeper.answered(event, self._now)

    def _run_begun(self, event: events.RunBegun) -> list[Command]:
        if event.record.job not in self._cluster.jobs:
            return []
        return self._standing.run_begins(event.record.job) + self._runs.begun(event)

    def _policy_changed(self, event: events.PolicyChanged) -> list[Command]:
        return self._standing.policy_changed(event, self._now)

    def _gpu_trouble(self, event: health_events.GpuTroubleTold) -> list[Command]:
        if not self._cluster.attached(event.node):
            self._note(f"{event.node} is not attached", True)
            return []
        return self._standing.gpu_trouble(event, self._now)

    def _restore_unready(self, event: events.RestoreUnready) -> list[Command]:
        return self._standing.restore_unready(event, self._now)

    def _run_refused(self, event: events.RunRefused) -> list[Command]:
        if event.job in self._cluster.jobs:
            self._runs.refused(event, self._now)
        return []

    def _job_loaded(self, event: events.JobLoaded) -> list[Command]:
        self._cluster.load(event.record)
        self._note(f"job {event.record.job} is at incarnation {event.record.incarnation}")
        return []

    def _time_passed(self, event: events.TimePassed) -> list[Command]:
        commands: list[Command] = []
        for action in self._running.all():
            if action.overdue(self._now):
                commands += self._step(action, event)
        return commands + self._keeper.on_time(event, self._now)

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
            commands += self._ended(action)
            return commands + self._keeper.apply(action.job, self._now)
        if isinstance(action, Restore) and action.cleared:
            self._runs.spare(action)
        return commands

    def _ended(self, action: AnyAction) -> list[Command]:
        """What its end means for the job."""
        if isinstance(action, Attempt):
            record = action.record()
            self._owed.owe(record)
            self._pace.note(record)
            if stops(record):
                self._cluster.ended_by(record)
            return self._standing.attempt_ended(record, self._now)
        told = self._standing.restore_ended(action.record(), self._now)
        return told + self._restore_ended(action)

    def _restore_ended(self, action: Restore) -> list[Command]:
        if action.state is RestoreState.RUNNING:
            for state in action.restored_workers():
                self._cluster.place(state, action.members[state.worker].node)
            self._runs.restored(action.job)
            return []
        self._owed.owe(action.record())
        job = self._cluster.jobs.get(action.job)
        if job is not None and action.sure:
            job.broken = True
        if not action.admitted:
            return []
        return self._runs.given_up(action.job, action.incarnation, cleared=action.cleared)

    def _note(self, reason: str, ignored: bool = False, action: str = "", state: str = "") -> None:
        self._journal.note(Decision(self._now, action, self._cause, reason, state, ignored))


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
    events.StoreRefused: Control._store_refused,
    events.PolicyChanged: Control._policy_changed,
    events.RestoreUnready: Control._restore_unready,
    drain_events.DrainRequested: Control._drain_requested,
    drain_events.NoticeGiven: lambda c, e: c._standing.notice(e, c._now),
    health_events.GpuTroubleTold: Control._gpu_trouble,
    drain_events.UndrainRequested: Control._undrain_requested,
    drain_events.DrainStored: lambda c, e: c._standing.drain_stored(e),
    drain_events.DrainUnstored: lambda c, e: c._standing.drain_unstored(e),
    drain_events.DrainUnready: lambda c, e: c._standing.drain_unready(e),
    events.JobLoaded: Control._job_loaded,
    events.RunBegun: Control._run_begun,
    events.RunRefused: Control._run_refused,
    events.DeletionRequested: Control._cleaning_requested,
    events.CollectionRequested: Control._cleaning_requested,
    events.RetentionChanged: lambda c, e: c._keeper.set_policy(e, c._now),
    events.SnapshotChanged: lambda c, e: c._keeper.changed(e, c._now),
    events.SnapshotsMarked: lambda c, e: c._keeper.about(e.cleaning, e, c._now),
    events.AttemptsWeighed: lambda c, e: c._keeper.about(e.cleaning, e, c._now),
    events.SnapshotsForgotten: lambda c, e: c._keeper.about(e.cleaning, e, c._now),
    events.TaskAnswered: Control._task_answered,
    events.TimePassed: Control._time_passed,
}
