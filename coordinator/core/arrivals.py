"""What shims tell of their nodes and workers: who is there, who is gone, and what that leads to."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from coordinator.core import events
from coordinator.core.attempt import Attempt
from coordinator.core.cluster import Stale
from coordinator.core.commands import AdmitWorker, Command, FenceWorkers, PutAttempt, PutRestore
from coordinator.core.events import Event
from coordinator.core.keeper import Keeper
from coordinator.core.known import ATTACHED, LEFT, LOST
from coordinator.core.model import AttemptRecord, WorkerState
from coordinator.core.owed import Owed, may_be_kept, policy_for, stop_of, stops, undo_of
from coordinator.core.policy import Policy
from coordinator.core.questions import Questions
from coordinator.core.returning import Restore
from coordinator.core.running import AnyAction, AnyRecord
from coordinator.core.runs import Runs

HELD = frozenset({"held", "stopped", "restored"})


class Arrivals(Questions):
    """The half of `Control` that meets what shims report."""

    policy: Policy
    _runs: Runs
    _owed: Owed
    _keeper: Keeper
    _now: float

    def _attached(self, event: events.NodeAttached) -> list[Command]:
        name = event.facts.node
        commands: list[Command] = []
        known = self._cluster.nodes.get(name)
        if known is not None and known.state == ATTACHED:
            same = known.session == event.session
            why = "its stream was opened anew" if same else "another shim process took its place"
            commands += self._gone(events.NodeLost(name, known.session, why))
        if known is None or known.session != event.session:
            self._standing.other_shim(name)
        stale = self._cluster.attach(event)
        self._note(f"{name} is attached with {len(event.workers)} workers")
        fenced = {(s.job, s.worker) for s, _ in stale}
        for action in self._running.all():
            if action.workers_on(name) or any(w.job == action.job for w in event.workers):
                commands += self._step(action, event)
        commands += [put(record) for record in self._owed.stopped(name, event.workers)]
        owed = self._owed.orders(name, event.workers, self.epoch, self.policy)
        told = {(order.job, order.worker, order.action) for order in owed}
        for state in event.workers:
            if (state.job, state.worker) not in fenced:
                commands += self._told_again(name, state)
                if (state.job, state.worker, state.action) not in told:
                    commands += self._let_go(name, state)
        commands += owed
        commands += self._keeper.nodes_changed(event, self._now)
        return commands + self._fence(name, stale) + self._consider(name, event.workers)

    def _told_again(self, node: str, state: WorkerState) -> list[Command]:
        """A worker was taken into a run, and its shim's stream broke before it heard of it."""
        known = self._cluster.nodes[node].workers[(state.job, state.worker)].incarnation
        if known == state.incarnation:
            return []
        return [AdmitWorker(node, state.job, state.worker, known)]

    def _let_go(self, node: str, state: WorkerState) -> list[Command]:
        """A worker that is held for an action that is over (or unknown here) is told to run."""
        if state.state not in HELD or not state.action or state.action in self._running:
            return []
        self._note(f"worker {state.worker} on {node} is held by {state.action}, which is over")
        kill = state.state == "restored"
        place = (state.job, state.worker, state.action)
        ended = self._running.ended(state.action)
        allowed = policy_for(self.policy, state)
        if stops(ended):
            return [stop_of(place, node, self.epoch, allowed.stop_s)]
        order = undo_of(place, node, self.epoch, allowed.undo_s)
        keep = may_be_kept(ended)
        return [replace(order, kill=kill, keep=keep, incarnation=state.incarnation)]

    def _consider(self, node: str, workers: Sequence[WorkerState]) -> list[Command]:
        """Workers that are not of the present run are taken in, refused, or wait."""
        commands: list[Command] = []
        for state in workers:
            job = self._cluster.jobs[state.job]
            known = self._cluster.nodes[node].workers.get((state.job, state.worker))
            if known is not None and (known.incarnation != job.incarnation or not job.incarnation):
                busy = self._running.of_job(state.job)
                who = f"{kind_of(busy[0])} {busy[0].id}" if busy else ""
                commands += self._runs.consider(node, state.job, state.worker, self._now, busy=who)
        return commands

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
        return commands + self._fence(event.node, stale) + self._consider(event.node, event.workers)

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
        return commands + self._keeper.nodes_changed(event, self._now)

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
        event = self._cluster.exited(event)
        self._note(f"worker {event.worker} on {event.node} exited with {event.exit_code}")
        self._standing.worker_exited(event)
        commands: list[Command] = []
        for action in self._running.of_job(event.job):
            if action.cares_about_exit(event):
                commands += self._step(action, event)
        return commands

    # -- the other half ------------------------------------------------------------------------

    def _step(self, action: AnyAction, event: Event) -> list[Command]:
        """Take an event through the table of an action."""
        raise NotImplementedError

    def _note(self, reason: str, ignored: bool = False, action: str = "", state: str = "") -> None:
        """Keep a decision in the journal."""
        raise NotImplementedError


def kind_of(action: AnyAction) -> str:
    """What an action is, in a word."""
    return "attempt" if isinstance(action, Attempt) else "restore"


def put(record: AnyRecord) -> Command:
    """Write the record of an action that has ended."""
    return PutAttempt(record) if isinstance(record, AttemptRecord) else PutRestore(record)
