"""Giving a restore up: kill what it restored, wherever it can be reached, and say so."""

from __future__ import annotations

from dataclasses import replace

from coordinator.core import trouble
from coordinator.core.action import Member, Round
from coordinator.core.commands import Command, PutRestore
from coordinator.core.errors import DeadlinePassed
from coordinator.core.events import (
    AbortRequested,
    NodeAttached,
    OrderFailed,
    StoreRefused,
    TimePassed,
    Undone,
    WorkerExited,
)
from coordinator.core.failures import listed
from coordinator.core.model import Failure, RestoreState, WorkerState
from coordinator.core.returning import Restore
from coordinator.core.undoing import Undoing

S = RestoreState


def fail(r: Restore, failure: Failure, now: float) -> list[Command]:
    """Give the restore up for a reason; with nothing ordered yet it ends at once."""
    r.failure = failure = trouble.in_phase(r, failure)
    why = trouble.given_up(failure)
    r.close_all(now)
    r.strays.clear()
    if not r.ordered:
        return finish(r, f"{why}; nothing was touched", now)
    for member in r.members.values():
        if member.worker in r.lost:
            r.note(f"{member} is out of reach, and {on_return(r)}")
    reachable = r.in_reach()
    if not reachable:
        return finish(r, why, now)
    orders = UNDOING.begin(r, reachable, now)
    r.move(S.FAILING, why)
    return [*orders, r.announce(now)]


def inherit(r: Restore, failure: Failure, now: float) -> list[Command]:
    """Give up a restore of an earlier leader; its nodes are told as they attach."""
    r.failure = failure
    orders = UNDOING.inherit(r, now)
    r.move(S.FAILING, trouble.given_up(failure))
    return [*orders, r.announce(now)]


def finish(r: Restore, reason: str, now: float) -> list[Command]:
    """The restore is over without the job running; the snapshot is as it was."""
    r.close_all(now)
    r.move(S.FAILED, r.with_notes(reason))
    record = r.record()
    return [PutRestore(record), r.announce(now, last=True, failure=r.failure, restore=record)]


# -- what makes a restore fail ---------------------------------------------------------------------


def on_exited(r: Restore, event: WorkerExited, now: float) -> list[Command]:
    """A restored worker died; one of an older incarnation is nothing new."""
    if event.incarnation != r.incarnation:
        r.ignore(f"worker {event.worker} of incarnation {event.incarnation} was to end anyway")
        return []
    advice = "look at the end of its output, then restore again"
    return fail(r, trouble.of_exit(r, event, "restored worker", advice), now)


def on_failed(r: Restore, event: OrderFailed, now: float) -> list[Command]:
    """A shim could not do what it was ordered; its own words are kept."""
    failure = trouble.of_order(r, event)
    return [] if failure is None else fail(r, failure, now)


def on_let_go(r: Restore, event: Undone, now: float) -> list[Command]:
    """A shim's own timer ran out, and what it had restored is gone."""
    advice = "the coordinator was out of reach for that long; restore again"
    failure = trouble.of_timer(r, event, "was given up by its own timer", advice)
    return [] if failure is None else fail(r, failure, now)


def on_abort_requested(r: Restore, event: AbortRequested, now: float) -> list[Command]:
    """An operator has had enough."""
    return fail(r, trouble.of_request(r, event), now)


def on_store_refused(r: Restore, event: StoreRefused, now: float) -> list[Command]:
    """The restore was not recorded (another one won, or the store is out of reach)."""
    r.failure = event.failure
    if event.failure.definite:
        r.close_all(now)
        r.move(S.FAILED, f"the restore could not be recorded: {event.failure.what}")
        return [r.announce(now, last=True, failure=r.failure, restore=r.record())]
    return finish(r, f"whether the restore was recorded is not known: {event.failure.what}", now)


def on_step_refused(r: Restore, event: StoreRefused, now: float) -> list[Command]:
    """That the old incarnation goes, or the new one runs, is not recorded: so it does not."""
    if (r.state is S.CLEARING and r.cleared) or r.released:
        r.ignore("no write is awaited in this state")
        return []
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


def on_found(r: Restore, event: NodeAttached, now: float) -> list[Command]:
    """A node is (again) in reach: it is told to clear away what it has.

    Nothing of a restore that was never released runs. So whoever runs in its incarnation is the
    old job, taken back when an earlier leader had given the restore up before anything was
    cleared, though the store never heard of that: it goes on.
    """
    r.sees(event.facts.node, event.workers)
    back = [state.worker for state in event.workers if _is_taken_back(r, state)]
    if back and r.cleared:
        r.cleared = False
        names = listed([f"worker {worker}" for worker in back])
        r.note(f"{names} on {event.facts.node} goes on as incarnation {r.incarnation}")
    return UNDOING.on_found(r, event, now)


def _is_taken_back(r: Restore, state: WorkerState) -> bool:
    at = (state.job, state.incarnation, state.state, state.action)
    return r.adopted and not r.released and at == (r.job, r.incarnation, "running", "")


def _orders(r: Restore, sent: Round, members: list[Member], now: float) -> list[Command]:
    reason = r.failure.what if r.failure else r.reason
    return [
        r.order(member, sent, now, kill=True, incarnation=r.incarnation, reason=reason)
        for member in members
    ]


def _end(r: Restore, now: float) -> list[Command]:
    why = trouble.given_up(r.failure) if r.failure else r.reason
    return finish(r, f"{why}; the snapshot is untouched", now)


def on_return(r: Restore) -> str:
    """What becomes of an old worker out of reach when its node comes back, for people."""
    return "is fenced when it comes back" if r.cleared else "keeps what runs there"


UNDOING = Undoing(
    orders=_orders,
    finish=_end,
    unable="could not be cleared away",
    away=lambda r, _: f"went out of reach, and {on_return(r)}",
)
