"""Giving an attempt up: undo what was ordered, everywhere it can be reached, and say so.

A node that is out of reach does not block it: its shim's dead-man timer does there what the order
would have done, and what is stored there is deleted when it returns (`owed`).
"""

from __future__ import annotations

from coordinator.core import trouble
from coordinator.core.action import Member, Round
from coordinator.core.attempt import Attempt
from coordinator.core.commands import Command, PutAttempt
from coordinator.core.errors import AllstopError, DeadlinePassed
from coordinator.core.events import (
    AbortRequested,
    CommitRefused,
    NodeLeft,
    NodeLost,
    OrderFailed,
    StoreRefused,
    TimePassed,
    Undone,
    WorkerExited,
)
from coordinator.core.failures import failure_of, listed
from coordinator.core.model import AttemptState, Failure
from coordinator.core.undoing import Undoing

S = AttemptState


def abort(a: Attempt, failure: Failure, now: float) -> list[Command]:
    """Give the attempt up for a reason; with nothing ordered yet it ends at once."""
    a.failure = failure = trouble.in_phase(a, failure)
    why = trouble.given_up(failure)
    a.close_all(now)
    if not a.ordered:
        return finish(a, f"{why}; nothing was held", now)
    for member in a.members.values():
        if member.worker in a.lost:
            a.note(f"{member} is out of reach and lets go by its own timer")
    reachable = a.in_reach()
    if not reachable:
        return finish(a, why, now)
    orders = UNDOING.begin(a, reachable, now)
    a.move(S.ABORTING, why)
    # An heir of the cut would go on with it; of an earlier state it knows that it is to be undone.
    record = [PutAttempt(a.record())] if a.cut_recorded else []
    return [*orders, *record, a.announce(now)]


def abort_for(a: Attempt, error: AllstopError, now: float) -> list[Command]:
    """Give the attempt up for an error that one of its own checks raised."""
    return abort(a, failure_of(error.at(job=a.job)), now)


def inherit(a: Attempt, failure: Failure, now: float) -> list[Command]:
    """Give up an attempt of an earlier leader; its workers are told as their nodes attach."""
    a.failure = failure
    orders = UNDOING.inherit(a, now)
    a.move(S.ABORTING, trouble.given_up(failure))
    record = [PutAttempt(a.record())] if a.cut_recorded else []
    return [*orders, *record, a.announce(now)]


def finish(a: Attempt, reason: str, now: float) -> list[Command]:
    """The attempt is over without a snapshot."""
    a.close_all(now)
    a.move(S.ABORTED, a.with_notes(reason))
    record = a.record()
    return [PutAttempt(record), a.announce(now, last=True, failure=a.failure, attempt=record)]


# -- what makes an attempt be given up -------------------------------------------------------------


def on_lost(a: Attempt, event: NodeLost | NodeLeft, now: float) -> list[Command]:
    """A member's node is gone: name it at once."""
    workers = a.lose(event)
    failure = trouble.of_node(
        a,
        event,
        f" with {listed([f'worker {w}' for w in workers])} on it",
        "the job needs that node: bring it back, or restore the last snapshot elsewhere",
    )
    return abort(a, failure, now)


def on_exited(a: Attempt, event: WorkerExited, now: float) -> list[Command]:
    """A member's root process ended."""
    return abort(a, trouble.of_exit(a, event, "worker", "look at the end of its output"), now)


def on_failed(a: Attempt, event: OrderFailed, now: float) -> list[Command]:
    """A shim could not do what it was ordered; its own words are kept."""
    failure = trouble.of_order(a, event)
    return [] if failure is None else abort(a, failure, now)


def on_let_go(a: Attempt, event: Undone, now: float) -> list[Command]:
    """A shim's dead-man timer ran out: the worker runs again, and nothing of it can be used."""
    what = f"was let go by its own timer after {event.held_ms} ms"
    advice = "the coordinator was out of reach for that long; try again"
    if a.torn:
        advice = (
            "ranks of other workers may have destroyed NCCL communicators that this one keeps: "
            "where no step follows, restore the job"
        )
    failure = trouble.of_timer(a, event, what, advice)
    if failure is None:
        return []
    _was_held(a, event)
    a.torn = False  # whoever has not begun to destroy them would wait for this one
    return abort(a, failure, now)


def on_undone(a: Attempt, event: Undone, now: float) -> list[Command]:
    """A worker runs on."""
    _was_held(a, event)
    return UNDOING.on_undone(a, event, now)


def _was_held(a: Attempt, event: Undone) -> None:
    """For how long a worker stood is what the attempt has cost the job."""
    a.held_ms[event.worker] = max(a.held_ms.get(event.worker, 0), event.held_ms)


def on_abort_requested(a: Attempt, event: AbortRequested, now: float) -> list[Command]:
    """An operator has had enough."""
    return abort(a, trouble.of_request(a, event), now)


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
    return inherit(a, event.failure, now) if a.adopted else abort(a, event.failure, now)


def on_time(a: Attempt, event: TimePassed, now: float) -> list[Command]:
    """Somebody was awaited in vain."""
    overdue = a.overdue(now)
    if not overdue:
        return []
    return abort(a, a.late(overdue[0], now, DeadlinePassed), now)


# -- while it is being undone ----------------------------------------------------------------------


def on_exited_while_undoing(a: Attempt, event: WorkerExited, now: float) -> list[Command]:
    """A worker died meanwhile; its staging is still to be removed, so it stays awaited."""
    a.note(f"worker {event.worker} on {event.node} has exited with {event.exit_code}")
    return []


def _orders(a: Attempt, sent: Round, members: list[Member], now: float) -> list[Command]:
    reason = a.failure.what if a.failure else a.reason
    detail = {"reason": reason, "keep": a.keep, "tear_down": a.torn}
    return [a.order(member, sent, now, **detail) for member in members]


def _end(a: Attempt, now: float) -> list[Command]:
    why = trouble.given_up(a.failure) if a.failure else a.reason
    return finish(a, f"{why}; the workers in reach run on" if a.members else why, now)


UNDOING = Undoing(
    orders=_orders,
    finish=_end,
    unable="could not be undone",
    away=lambda _, event: f"{trouble.verb(event)} and lets go by its own timer",
)
