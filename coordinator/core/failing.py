"""Giving a restore up: kill what it restored, wherever it can be reached, and say so."""

from __future__ import annotations

from dataclasses import replace

from coordinator.core.action import Member
from coordinator.core.commands import Command, PutRestore
from coordinator.core.errors import DeadlinePassed, RestoreFailed
from coordinator.core.events import (
    AbortRequested,
    NodeAttached,
    NodeLeft,
    NodeLost,
    OrderFailed,
    StoreRefused,
    TimePassed,
    Undone,
    WorkerExited,
)
from coordinator.core.failures import listed
from coordinator.core.model import Failure, Phase, RestoreState, WorkerState
from coordinator.core.returning import Restore, toward_restore

S = RestoreState


def fail(r: Restore, failure: Failure, now: float) -> list[Command]:
    """Give the restore up for a reason; with nothing ordered yet it ends at once."""
    r.failure = failure
    r.close_all(now)
    r.strays.clear()
    phase = failure.phase or str(r.state)
    if not r.ordered:
        return finish(r, f"given up before anything was touched: {failure.what}", now)
    reachable = [m for m in r.members.values() if m.worker not in r.lost]
    for member in r.members.values():
        if member.worker in r.lost:
            r.note(f"{member} is out of reach, and {_on_return(r)}")
    if not reachable:
        return finish(r, f"given up in {phase}: {failure.what}", now)
    return undo(r, f"given up in {phase}: {failure.what}", now, r.policy.undo_s, reachable)


def undo(
    r: Restore, reason: str, now: float, seconds: float, members: list[Member]
) -> list[Command]:
    """Order everyone given to kill what was restored."""
    sent = r.open_round(Phase.UNDO, seconds, now, capped=False, members=members)
    r.move(S.FAILING, reason)
    orders = r.orders(sent, now, kill=True, incarnation=r.incarnation, reason=reason)
    return [*orders, r.announce(now)]


def undo_adopted(r: Restore, failure: Failure, now: float) -> list[Command]:
    """Give up a restore of an earlier leader; its nodes are told as they attach."""
    r.failure = failure
    r.open_round(Phase.UNDO, r.policy.adopt_s, now, capped=False)
    r.move(S.FAILING, failure.what)
    return [r.announce(now)]


def finish(r: Restore, reason: str, now: float) -> list[Command]:
    """The restore is over without the job running; the snapshot is as it was."""
    r.close_all(now)
    r.move(S.FAILED, r.with_notes(reason))
    record = r.record()
    return [PutRestore(record), r.announce(now, last=True, failure=r.failure, restore=record)]


# -- what makes a restore fail ---------------------------------------------------------------------


def on_lost(r: Restore, event: NodeLost | NodeLeft, now: float) -> list[Command]:
    """A node of the plan is gone; a node that only had old workers is one thing less to clear."""
    for key in [k for k in r.strays if k[0] == event.node]:
        r.strays.pop(key)
        r.note(f"old worker {key[1]} on {event.node} is out of reach, and {_on_return(r)}")
    workers = r.workers_on(event.node)
    if not workers:
        return _after_stray(r, now)
    for worker in workers:
        r.lost[worker] = event.reason
    verb = "was lost" if isinstance(event, NodeLost) else "left"
    failure = Failure(
        kind=RestoreFailed.__name__,
        what=f"node {event.node} {verb} ({event.reason}), where "
        f"{listed([f'worker {w}' for w in workers])} was to run",
        job=r.job,
        worker=workers[0],
        node=event.node,
        phase=_phase_of(r),
        advice="restore again: the next plan uses other nodes",
    )
    return fail(r, failure, now)


def _after_stray(r: Restore, now: float) -> list[Command]:
    return toward_restore(r, now) if r.state is S.CLEARING else []


def on_exited(r: Restore, event: WorkerExited, now: float) -> list[Command]:
    """A restored worker died; one of an older incarnation is nothing new."""
    if event.incarnation != r.incarnation:
        r.ignore(f"worker {event.worker} of incarnation {event.incarnation} was to end anyway")
        return []
    how = f"code {event.exit_code}" if event.exit_code >= 0 else f"signal {-event.exit_code}"
    failure = Failure(
        kind=RestoreFailed.__name__,
        what=f"restored worker {event.worker} on {event.node} exited with {how}",
        job=r.job,
        worker=event.worker,
        node=event.node,
        phase=_phase_of(r),
        advice="look at the end of its output, then restore again",
        details=tuple(event.log_tail.splitlines()[-20:]),
    )
    return fail(r, failure, now)


def on_failed(r: Restore, event: OrderFailed, now: float) -> list[Command]:
    """A shim could not do what it was ordered; its own words are kept."""
    member = r.members.get(event.worker)
    if member is None or member.node != event.node:
        r.ignore(f"worker {event.worker} of this restore is not on {event.node}")
        return []
    place = replace(
        event.failure, job=r.job, worker=event.worker, node=event.node, phase=str(event.phase)
    )
    return fail(r, place, now)


def on_let_go(r: Restore, event: Undone, now: float) -> list[Command]:
    """A shim's own timer ran out, and what it had restored is gone."""
    member = r.members.get(event.worker)
    if member is None or member.node != event.node:
        r.ignore(f"worker {event.worker} of this restore is not on {event.node}")
        return []
    failure = Failure(
        kind=RestoreFailed.__name__,
        what=f"{member} was given up by its own timer",
        job=r.job,
        worker=event.worker,
        node=event.node,
        phase=_phase_of(r),
        advice="the coordinator was out of reach for that long; restore again",
    )
    return fail(r, failure, now)


def on_abort_requested(r: Restore, event: AbortRequested, now: float) -> list[Command]:
    """An operator has had enough."""
    failure = Failure(
        kind=RestoreFailed.__name__,
        what=f"aborted on request: {event.reason or 'no reason given'}",
        job=r.job,
        phase=_phase_of(r),
    )
    return fail(r, failure, now)


def on_store_refused(r: Restore, event: StoreRefused, now: float) -> list[Command]:
    """The restore was not recorded (another one won, or the store is out of reach)."""
    r.failure = event.failure
    if event.failure.definite:
        r.close_all(now)
        r.move(S.FAILED, f"the restore could not be recorded: {event.failure.what}")
        return [r.announce(now, last=True, failure=r.failure, restore=r.record())]
    return finish(r, f"whether the restore was recorded is not known: {event.failure.what}", now)


def on_clear_refused(r: Restore, event: StoreRefused, now: float) -> list[Command]:
    """That the old incarnation goes could not be recorded, so nothing of it may be touched."""
    return fail(r, event.failure, now)


def on_time(r: Restore, event: TimePassed, now: float) -> list[Command]:
    """Somebody was awaited in vain."""
    overdue = r.overdue(now)
    if not overdue:
        return []
    late = r.late(overdue[0], now, DeadlinePassed)
    if r.strays:
        names = [f"old worker {worker} on {node}" for node, worker in r.strays]
        late = replace(late, what=f"{late.what} {listed(names)}", details=(*late.details, *names))
    return fail(r, late, now)


# -- while it is being cleared away ----------------------------------------------------------------


def on_undone(r: Restore, event: Undone, now: float) -> list[Command]:
    """What was restored on a node is gone."""
    sent = r.accept(event, Phase.UNDO)
    if sent is None:
        return []
    sent.take(event.worker)
    return _settle(r, now)


def on_undo_failed(r: Restore, event: OrderFailed, now: float) -> list[Command]:
    """A worker could not be cleared away: it is named, and nobody waits for it any longer."""
    if event.phase is not Phase.UNDO:
        r.ignore(f"{event.phase} failed on {event.node}, and is being cleared away already")
        return []
    sent = r.accept(event, Phase.UNDO)
    if sent is None:
        return []
    r.note(f"{sent.awaited[event.worker]} could not be cleared away: {event.failure.what}")
    sent.take(event.worker)
    return _settle(r, now)


def on_lost_while_undoing(r: Restore, event: NodeLost | NodeLeft, now: float) -> list[Command]:
    """An awaited node is gone: it is fenced when it comes back."""
    sent = r.rounds[Phase.UNDO]
    for worker in r.workers_on(event.node):
        r.lost[worker] = event.reason
        if sent.awaited.pop(worker, None):
            r.note(f"{r.members[worker]} went out of reach, and {_on_return(r)}")
    return _settle(r, now)


def on_found_while_undoing(r: Restore, event: NodeAttached, now: float) -> list[Command]:
    """A node of the plan is (again) in reach: it is told to clear away what it has.

    An heir looks before it kills: the last record of a restore that was through may be lost.
    """
    sent = r.rounds[Phase.UNDO]
    commands: list[Command] = []
    running = {state.worker for state in event.workers if _runs_restored(r, state)}
    for worker in r.workers_on(event.facts.node):
        member = r.members[worker]
        if worker in running:
            r.found.add(worker)
            sent.awaited.pop(worker, None)
            r.note(f"{member} was found running, released")
            continue
        r.found.discard(worker)
        sent.awaited[worker] = member
        sent.expected = max(sent.expected, len(sent.awaited))
        order = r.order(member, sent, now, kill=True, incarnation=r.incarnation, reason=r.reason)
        commands.append(order)
    if commands:
        r.move(S.FAILING, f"{event.facts.node} is in reach and told to clear away")
    return [*commands, *_settle(r, now)] if running else commands


def _runs_restored(r: Restore, state: WorkerState) -> bool:
    """Whether a worker is what an earlier leader's restore released, and runs."""
    return (
        r.adopted
        and r.cleared
        and (state.job, state.state, state.incarnation) == (r.job, "running", r.incarnation)
        and not state.action
    )


def on_undo_late(r: Restore, event: TimePassed, now: float) -> list[Command]:
    """Whoever has not cleared away by now is named and left."""
    for sent in r.overdue(now):
        for member in sent.awaited.values():
            r.note(f"{member} has not said within {now - sent.sent_at:.1f} s that it was undone")
        return finish(r, _outcome(r), now)
    return []


def _settle(r: Restore, now: float) -> list[Command]:
    sent = r.rounds[Phase.UNDO]
    if not sent.complete:
        return r.progress(sent, now)
    return _found_running(r, now) if r.found == r.members.keys() else finish(r, _outcome(r), now)


def _found_running(r: Restore, now: float) -> list[Command]:
    r.close_all(now)
    r.failure = None
    r.move(S.RUNNING, f"every worker of snapshot {r.snapshot_id} was found running, released")
    record = r.record()
    return [PutRestore(record), r.announce(now, last=True, restore=record)]


def _outcome(r: Restore) -> str:
    what = r.failure.what if r.failure else r.reason
    return f"{what}; the snapshot is untouched"


def _phase_of(r: Restore) -> str:
    return next((str(phase) for phase in r.rounds), str(r.state))


def _on_return(r: Restore) -> str:
    return "is fenced when it comes back" if r.cleared else "keeps what runs there"
