"""Giving an attempt up: undo what was ordered, everywhere it can be reached, and say so.

Undo is an order like any other, with a deadline. A node that is out of reach does not block it:
its shim's dead-man timer does there what the order would have done.
"""

from __future__ import annotations

from coordinator.core.action import Member
from coordinator.core.attempt import Attempt
from coordinator.core.commands import Command, PutAttempt
from coordinator.core.errors import AllstopError, AttemptFailed, DeadlinePassed
from coordinator.core.events import (
    AbortRequested,
    CommitRefused,
    NodeAttached,
    NodeLeft,
    NodeLost,
    OrderFailed,
    StoreRefused,
    TimePassed,
    Undone,
    WorkerExited,
)
from coordinator.core.failures import failure_of, listed
from coordinator.core.model import AttemptState, Failure, Phase

S = AttemptState


def abort(a: Attempt, failure: Failure, now: float) -> list[Command]:
    """Give the attempt up for a reason; with nothing ordered yet it ends at once."""
    a.failure = failure
    phase = failure.phase or str(a.state)
    a.close_all(now)
    if not a.ordered:
        return finish(a, f"given up before anything was held: {failure.what}", now)
    reachable = [m for m in a.members.values() if m.worker not in a.lost]
    for member in a.members.values():
        if member.worker in a.lost:
            a.note(f"{member} is out of reach and lets go by its own timer")
    if not reachable:
        return finish(a, f"given up in {phase}: {failure.what}", now)
    sent = a.open_round(Phase.UNDO, a.policy.undo_s, now, capped=False, members=reachable)
    a.move(S.ABORTING, f"given up in {phase}: {failure.what}")
    return [*a.orders(sent, now, reason=failure.what, keep=a.keep), a.announce(now)]


def abort_for(a: Attempt, error: AllstopError, now: float) -> list[Command]:
    """Give the attempt up for an error that one of its own checks raised."""
    return abort(a, failure_of(error.at(job=a.job)), now)


def finish(a: Attempt, reason: str, now: float) -> list[Command]:
    """The attempt is over without a snapshot."""
    a.close_all(now)
    a.move(S.ABORTED, a.with_notes(reason))
    record = a.record()
    return [PutAttempt(record), a.announce(now, last=True, failure=a.failure, attempt=record)]


# -- what makes an attempt be given up -------------------------------------------------------------


def on_lost(a: Attempt, event: NodeLost | NodeLeft, now: float) -> list[Command]:
    """A member's node is gone: name it at once."""
    workers = lose(a, event)
    failure = Failure(
        kind=AttemptFailed.__name__,
        what=f"node {event.node} {_verb(event)} ({event.reason}) with "
        f"{listed([f'worker {w}' for w in workers])} on it",
        job=a.job,
        worker=workers[0],
        node=event.node,
        phase=phase_of(a),
        advice="the job needs that node: bring it back, or restore the last snapshot elsewhere",
    )
    return abort(a, failure, now)


def on_exited(a: Attempt, event: WorkerExited, now: float) -> list[Command]:
    """A member's root process ended."""
    how = f"code {event.exit_code}" if event.exit_code >= 0 else f"signal {-event.exit_code}"
    failure = Failure(
        kind=AttemptFailed.__name__,
        what=f"worker {event.worker} on {event.node} exited with {how}",
        job=a.job,
        worker=event.worker,
        node=event.node,
        phase=phase_of(a),
        advice="look at the end of its output",
        details=tuple(event.log_tail.splitlines()[-20:]),
    )
    return abort(a, failure, now)


def on_failed(a: Attempt, event: OrderFailed, now: float) -> list[Command]:
    """A shim could not do what it was ordered; its own words are kept."""
    member = a.members.get(event.worker)
    if member is None or member.node != event.node:
        a.ignore(f"worker {event.worker} of this attempt is not on {event.node}")
        return []
    failure = event.failure
    place = Failure(
        kind=failure.kind,
        what=failure.what,
        job=a.job,
        worker=event.worker,
        rank=failure.rank,
        node=event.node,
        phase=str(event.phase),
        advice=failure.advice,
        definite=failure.definite,
        details=failure.details,
    )
    return abort(a, place, now)


def on_let_go(a: Attempt, event: Undone, now: float) -> list[Command]:
    """A shim's dead-man timer ran out: the worker runs again, and nothing of it can be used."""
    member = a.members.get(event.worker)
    if member is None or member.node != event.node:
        a.ignore(f"worker {event.worker} of this attempt is not on {event.node}")
        return []
    failure = Failure(
        kind=AttemptFailed.__name__,
        what=f"{member} was let go by its own timer after {event.held_ms} ms",
        job=a.job,
        worker=event.worker,
        node=event.node,
        phase=phase_of(a),
        advice="the coordinator was out of reach for that long; try again",
    )
    return abort(a, failure, now)


def on_abort_requested(a: Attempt, event: AbortRequested, now: float) -> list[Command]:
    """An operator has had enough."""
    failure = Failure(
        kind=AttemptFailed.__name__,
        what=f"aborted on request: {event.reason or 'no reason given'}",
        job=a.job,
        phase=phase_of(a),
    )
    return abort(a, failure, now)


def on_store_refused(a: Attempt, event: StoreRefused, now: float) -> list[Command]:
    """The attempt could not be recorded, so nothing may be held for it."""
    a.failure = event.failure
    if event.failure.definite:
        a.close_all(now)
        a.move(S.ABORTED, f"the attempt could not be recorded: {event.failure.what}")
        return [a.announce(now, last=True, failure=a.failure, attempt=a.record())]
    return finish(a, f"whether the attempt was recorded is not known: {event.failure.what}", now)


def on_commit_refused(a: Attempt, event: CommitRefused, now: float) -> list[Command]:
    """There is no snapshot; where that is not sure, its images are kept."""
    a.keep = not event.failure.definite
    if not a.adopted:
        return abort(a, event.failure, now)
    a.close_all(now)
    return undo_adopted(a, event.failure, now)


def on_time(a: Attempt, event: TimePassed, now: float) -> list[Command]:
    """Somebody was awaited in vain."""
    overdue = a.overdue(now)
    if not overdue:
        return []
    return abort(a, a.late(overdue[0], now, DeadlinePassed), now)


# -- while it is being undone ----------------------------------------------------------------------


def on_undone(a: Attempt, event: Undone, now: float) -> list[Command]:
    """A worker runs again and has nothing staged."""
    sent = a.accept(event, Phase.UNDO)
    if sent is None:
        return []
    sent.take(event.worker)
    a.undone.add(event.worker)
    return _settle(a, now)


def on_undo_failed(a: Attempt, event: OrderFailed, now: float) -> list[Command]:
    """A worker could not be undone: it is named, and nobody waits for it any longer."""
    if event.phase is not Phase.UNDO:
        a.ignore(f"{event.phase} failed on {event.node}, and is being undone already")
        return []
    sent = a.accept(event, Phase.UNDO)
    if sent is None:
        return []
    a.note(f"{sent.awaited[event.worker]} could not be undone: {event.failure.what}")
    sent.take(event.worker)
    return _settle(a, now)


def on_lost_while_undoing(a: Attempt, event: NodeLost | NodeLeft, now: float) -> list[Command]:
    """An awaited node is gone: its own timer undoes it."""
    for worker in lose(a, event):
        for sent in a.rounds.values():
            if worker in sent.awaited:
                a.note(f"{a.members[worker]} {_verb(event)} and lets go by its own timer")
                sent.awaited.pop(worker)
    return _settle(a, now)


def on_exited_while_undoing(a: Attempt, event: WorkerExited, now: float) -> list[Command]:
    """A worker died meanwhile; its staging is still to be removed, so it stays awaited."""
    a.note(f"worker {event.worker} on {event.node} has exited with {event.exit_code}")
    return []


def on_found_while_undoing(a: Attempt, event: NodeAttached, now: float) -> list[Command]:
    """A node (again) in reach: whatever members it has are told to undo."""
    sent = a.rounds[Phase.UNDO]
    commands: list[Command] = []
    for state in event.workers:
        if state.job != a.job:
            continue
        known = a.members.get(state.worker)
        if known is None and not a.adopted:
            continue
        if known is not None and known.node not in ("", event.facts.node):
            continue
        for worker in range(len(a.members), state.workers if a.adopted else 0):
            a.members[worker] = sent.awaited[worker] = Member(worker, "")
        member = Member(state.worker, event.facts.node)
        a.members[member.worker] = member
        on_node = a.by_node.setdefault(member.node, [])
        if member.worker not in on_node:
            on_node.append(member.worker)
        sent.awaited[member.worker] = member
        sent.expected = max(sent.expected, len(sent.awaited))
        reason = a.failure.what if a.failure else a.reason
        commands.append(a.order(member, sent, now, reason=reason, keep=a.keep))
    if commands:
        a.move(S.ABORTING, f"{event.facts.node} is in reach and told to undo")
    return commands


def on_undo_late(a: Attempt, event: TimePassed, now: float) -> list[Command]:
    """Whoever has not undone by now is left to its own timer, by name."""
    for sent in a.overdue(now):
        for member in sent.awaited.values():
            a.note(f"{member} has not said within {now - sent.sent_at:.1f} s that it was undone")
        return finish(a, _outcome(a), now)
    return []


def undo_adopted(a: Attempt, failure: Failure, now: float) -> list[Command]:
    """Give up an attempt of an earlier leader; its workers are told as their nodes attach."""
    a.failure = failure
    a.open_round(Phase.UNDO, a.policy.adopt_s, now, capped=False)
    a.move(S.ABORTING, failure.what)
    return [a.announce(now)]


def _settle(a: Attempt, now: float) -> list[Command]:
    sent = a.rounds[Phase.UNDO]
    return finish(a, _outcome(a), now) if sent.complete else a.progress(sent, now)


def _outcome(a: Attempt) -> str:
    what = a.failure.what if a.failure else a.reason
    return f"{what}; the workers in reach run on" if a.members else what


# -- small things ----------------------------------------------------------------------------------


def lose(a: Attempt, event: NodeLost | NodeLeft) -> list[int]:
    """Mark a node's members as out of reach and return them."""
    workers = a.workers_on(event.node)
    for worker in workers:
        a.lost[worker] = event.reason
    return workers


def phase_of(a: Attempt) -> str:
    """The phase that is under way, for errors."""
    return next((str(phase) for phase in a.rounds), str(a.state))


def _verb(event: NodeLost | NodeLeft) -> str:
    return "was lost" if isinstance(event, NodeLost) else "left"
