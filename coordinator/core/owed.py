"""Undo orders that a node could not be given: it gets them when it is in reach again.

A shim that died after it had published its images has left them in the store, and no snapshot
will ever name them. Known to one leader only; a new one does not know which nodes they were on.
"""

from __future__ import annotations

from dataclasses import replace

from coordinator.core.attempt import Attempt
from coordinator.core.commands import SendOrder
from coordinator.core.model import (
    AttemptRecord,
    AttemptState,
    Phase,
    RestoreRecord,
    RestoreState,
)

UNDONE = frozenset({AttemptState.ABORTED, RestoreState.FAILED})

Place = tuple[str, int, str]  # job, worker, action


def undo_of(place: Place, node: str, epoch: int, deadline_s: float) -> SendOrder:
    """The order to undo an action that has ended, for a worker that nobody awaits any more."""
    job, worker, action = place
    return SendOrder(
        node=node,
        epoch=epoch,
        job=job,
        worker=worker,
        action=action,
        phase=Phase.UNDO,
        deadline_s=deadline_s,
        reason=f"{action} is over",
    )


def stop_of(place: Place, node: str, epoch: int, deadline_s: float) -> SendOrder:
    """The order to stop a worker whose node was away when its committed attempt stopped the job."""
    order = undo_of(place, node, epoch, deadline_s)
    return replace(order, phase=Phase.STOP, reason=f"stopped with snapshot {place[2]}")


def stops(ended: AttemptRecord | RestoreRecord | None) -> bool:
    """Whether an action that has ended is a checkpoint after which the job is to stop."""
    if not isinstance(ended, AttemptRecord):
        return False
    return ended.stop and ended.state is AttemptState.COMMITTED


def may_be_kept(ended: AttemptRecord | RestoreRecord | None) -> bool:
    """Whether what an action stored may be a snapshot's: it goes only if it surely is none's."""
    if ended is None or ended.state not in UNDONE:
        return True
    return ended.failure is not None and not ended.failure.definite


class Owed:
    """By node, what it has not said to be undone; the oldest are forgotten above the limit."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._owed: dict[tuple[str, Place], None] = {}

    def owe(self, attempt: Attempt) -> None:
        """An attempt has ended: whoever was told to store images and did not undo it owes that."""
        stored = any(timing.phase is Phase.PERSIST for timing in attempt.timings)
        if attempt.state is not AttemptState.ABORTED or attempt.keep or not stored:
            return
        for member in attempt.members.values():
            if member.worker not in attempt.undone and member.node:
                self._owed[(member.node, (attempt.job, member.worker, attempt.id))] = None
        while len(self._owed) > self._limit:
            self._owed.pop(next(iter(self._owed)))

    def at(self, node: str) -> list[Place]:
        """What a node that attaches is to be told."""
        return [place for at, place in self._owed if at == node]

    def paid(self, node: str, job: str, worker: int, action: str) -> None:
        """A node says that it has undone."""
        self._owed.pop((node, (job, worker, action)), None)
