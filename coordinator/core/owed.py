"""Orders that a node could not be given when an action ended: it gets them when it is in reach.

UNDO of what was given up (a shim that died after it had published its images has left them in the
store, and no snapshot will ever name them), and STOP of a job that was to end with its snapshot.
What is owed stands in the action's record, so that a new leader owes it too.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from coordinator.core.cluster import NOT_ALIVE
from coordinator.core.commands import SendOrder
from coordinator.core.model import (
    AttemptRecord,
    AttemptState,
    Phase,
    RestoreRecord,
    RestoreState,
    WorkerState,
)
from coordinator.core.policy import Policy

UNDONE = frozenset({AttemptState.ABORTED, RestoreState.FAILED})

Record = AttemptRecord | RestoreRecord
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


def stops(ended: Record | None) -> bool:
    """Whether an action that has ended is a checkpoint after which the job is to stop."""
    if not isinstance(ended, AttemptRecord):
        return False
    return ended.stop and ended.state is AttemptState.COMMITTED


def may_be_kept(ended: Record | None) -> bool:
    """Whether what an action stored may be a snapshot's: it goes only if it surely is none's."""
    if ended is None or ended.state not in UNDONE:
        return True
    return isinstance(ended, AttemptRecord) and ended.keep


def policy_for(policy: Policy, state: WorkerState | None) -> Policy:
    """How long a worker as it stands may take to undo, or to be stopped."""
    return policy.with_devices() if state is not None and state.gpu else policy


def lives(state: WorkerState | None, incarnation: int) -> bool:
    """Whether a worker of just this incarnation is there and could be stopped."""
    return state is not None and state.incarnation == incarnation and state.state not in NOT_ALIVE


@dataclass
class _Debt:
    """What one action is owed; its record is written anew when nothing is left."""

    record: Record
    workers: set[int] = field(default_factory=set)


class Owed:
    """By node, who has not done the last order of an action; above the limit the oldest go."""

    def __init__(self, limit: int) -> None:
        """`limit` is in actions."""
        self._limit = limit
        self._debts: dict[str, _Debt] = {}  # by action, oldest first
        self._at: dict[str, dict[Place, None]] = {}  # by node

    def owe(self, record: Record) -> None:
        """An action has ended, here or under an earlier leader: whoever is named in it owes."""
        for worker, node in _owed(record):
            debt = self._debts.setdefault(_id(record), _Debt(record))
            debt.workers.add(worker)
            self._at.setdefault(node, {})[(record.job, worker, _id(record))] = None
        while len(self._debts) > self._limit:
            self._forget(next(iter(self._debts)))

    def orders(
        self, node: str, workers: Iterable[WorkerState], epoch: int, policy: Policy
    ) -> list[SendOrder]:
        """What a node that attaches with these workers is to be told.

        A worker that is of another incarnation is not the one that was to be stopped.
        """
        there = {(s.job, s.worker): s for s in workers}
        found: list[SendOrder] = []
        for place in self._at.get(node, {}):
            record = self._debts[place[2]].record
            if not stops(record):
                allowed = policy_for(policy, there.get(place[:2]))
                order = undo_of(place, node, epoch, allowed.undo_s)
                kill = isinstance(record, RestoreRecord)
                incarnation = record.incarnation if kill else 0
                keep = may_be_kept(record)
                found.append(replace(order, kill=kill, keep=keep, incarnation=incarnation))
                continue
            if lives(there.get(place[:2]), record.incarnation):
                allowed = policy_for(policy, there.get(place[:2]))
                found.append(stop_of(place, node, epoch, allowed.stop_s))
        return found

    def stopped(self, node: str, workers: Iterable[WorkerState]) -> list[Record]:
        """Whom a node that attaches does not have any more has stopped; records as of `paid`."""
        there = {(s.job, s.worker): s for s in workers}
        records: list[Record] = []
        for job, worker, action in list(self._at.get(node, {})):
            record = self._debts[action].record
            alive = lives(there.get((job, worker)), record.incarnation)
            paid = None if alive or not stops(record) else self.paid(node, job, worker, action)
            records += [] if paid is None else [paid]
        return records

    def paid(self, node: str, job: str, worker: int, action: str) -> Record | None:
        """A node has done it; the record to be put when that was the last one of the action."""
        debt = self._debts.get(action)
        places = self._at.get(node, {})
        if debt is None or (job, worker, action) not in places:
            return None
        places.pop((job, worker, action))
        if not places:
            self._at.pop(node)
        debt.workers.discard(worker)
        if debt.workers:
            return None
        self._debts.pop(action)
        return replace(debt.record, owed=())

    def _forget(self, action: str) -> None:
        record = self._debts.pop(action).record
        for worker, node in _owed(record):
            places = self._at.get(node, {})
            places.pop((record.job, worker, action), None)
            if not places:
                self._at.pop(node, None)


def _id(record: Record) -> str:
    return record.attempt if isinstance(record, AttemptRecord) else record.restore


def _owed(record: Record) -> list[tuple[int, str]]:
    """Worker and node of everyone who owes; a number without a node is nobody."""
    if isinstance(record, AttemptRecord):
        nodes = dict(enumerate(record.nodes))
    else:
        nodes = {p.worker: p.to_node for p in record.plan.placements}
    return [(worker, nodes[worker]) for worker in record.owed if nodes.get(worker)]
