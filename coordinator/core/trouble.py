"""What goes wrong with an attempt or a restore: failures that name who, where, in which phase.

Each function makes the failure of one cause; what is done about it stands in `aborting` and
`failing`.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from coordinator.core.action import Action
from coordinator.core.events import (
    AbortRequested,
    NodeLeft,
    NodeLost,
    OrderAnswered,
    OrderFailed,
    WorkerExited,
)
from coordinator.core.model import Failure

LOG_LINES = 20  # of a worker's output, kept with the failure


def verb(event: NodeLost | NodeLeft) -> str:
    """How a node went."""
    return "was lost" if isinstance(event, NodeLost) else "left"


def given_up(failure: Failure) -> str:
    """Why an action is over, in one sentence that names the phase and whom it was about."""
    place = (
        f"worker {failure.worker}" if failure.worker >= 0 else "",
        f"rank {failure.rank}" if failure.rank >= 0 else "",
        failure.node,
    )
    missing = [name for name in place if name and name not in failure.what]
    who = f" ({', '.join(missing)})" if missing else ""
    where = f"given up in {failure.phase}: " if failure.phase else ""
    return f"{where}{failure.what}{who}"


def in_phase(a: Action[Any], failure: Failure) -> Failure:
    """The failure with the phase that is under way, where it names none."""
    return failure if failure.phase else replace(failure, phase=a.phase)


def of_node(a: Action[Any], event: NodeLost | NodeLeft, what: str, advice: str) -> Failure:
    """A node with members of the action is gone; `what` says what that means for them."""
    return Failure(
        kind=a.FAILED_AS.__name__,
        what=f"node {event.node} {verb(event)} ({event.reason}){what}",
        job=a.job,
        worker=a.workers_on(event.node)[0],
        node=event.node,
        phase=a.phase,
        advice=advice,
    )


def of_exit(a: Action[Any], event: WorkerExited, who: str, advice: str) -> Failure:
    """A member's root process ended; the end of its output is kept."""
    how = f"code {event.exit_code}" if event.exit_code >= 0 else f"signal {-event.exit_code}"
    return Failure(
        kind=a.FAILED_AS.__name__,
        what=f"{who} {event.worker} on {event.node} exited with {how}",
        job=a.job,
        worker=event.worker,
        node=event.node,
        phase=a.phase,
        advice=advice,
        details=tuple(event.log_tail.splitlines()[-LOG_LINES:]),
    )


def of_order(a: Action[Any], event: OrderFailed) -> Failure | None:
    """A shim could not do what it was ordered, in its own words; None when it is no member's."""
    if not a.is_of_member(event):
        return None
    return replace(
        event.failure, job=a.job, worker=event.worker, node=event.node, phase=str(event.phase)
    )


def of_timer(a: Action[Any], event: OrderAnswered, what: str, advice: str) -> Failure | None:
    """A dead-man timer ran out; None when it is no member's."""
    if not a.is_of_member(event):
        return None
    return Failure(
        kind=a.FAILED_AS.__name__,
        what=f"{a.members[event.worker]} {what}",
        job=a.job,
        worker=event.worker,
        node=event.node,
        phase=a.phase,
        advice=advice,
    )


def of_request(a: Action[Any], event: AbortRequested) -> Failure:
    """An operator has had enough."""
    return Failure(
        kind=a.FAILED_AS.__name__,
        what=f"aborted on request: {event.reason or 'no reason given'}",
        job=a.job,
        phase=a.phase,
    )
