"""The checkpoint round: one table, which is its documentation.

    ADMITTING -> HOLDING -> PARKING -> (LOCKING -> SAVING ->) DUMPING -> CUT -> PERSISTING
              -> COMMITTING -> (STOPPING ->) COMMITTED          anything -> ABORTING -> ABORTED

CUT is not a state but a moment: every worker's Dumped is in while no dead-man timer can have run
out. From then on the job may run. COMMIT is the moment of one etcd transaction: before it there is
no snapshot, after it nothing is undone. With cut = freeze HOLDING and PARKING are left out.

The arrows are in `parking` (up to the cut), `committing` (from there), `inheriting` (nodes that
come back, and what a new leader goes on with) and `aborting`.
"""

from __future__ import annotations

from coordinator.core import aborting, committing, inheriting, parking
from coordinator.core.events import (
    AbortRequested,
    AttemptStored,
    CommitRefused,
    Dumped,
    Event,
    GpuLocked,
    GpuSaved,
    Held,
    NodeAttached,
    NodeLeft,
    NodeLost,
    OrderFailed,
    Parked,
    Persisted,
    Resumed,
    SnapshotCommitted,
    Stopped,
    StoreRefused,
    TimePassed,
    Undone,
    WorkerExited,
)
from coordinator.core.model import AttemptState
from coordinator.core.table import Ignored, Row, Table

S = AttemptState

_FROZEN = Ignored("who takes part was settled when the attempt began")
_ANSWERED = Ignored("that order was answered before")
_GIVEN_UP = Ignored("the attempt is being undone")
_STORED = Ignored("everything is in the store; nothing that happens to a node changes the snapshot")
_TOO_LATE = Ignored("once committing has begun it is not undone")
_TRANSACTION_TELLS = Ignored("the commit transaction compares the record and will tell")
_RECORDED = Ignored("a later state was recorded; nothing waits for that")

_TO = (S.ABORTING, S.ABORTED)  # at once when nobody is in reach to be undone


def _held_state(*forward: S) -> dict[type[Event], Row | Ignored]:
    """Rows of every state between the first order and the cut: any trouble gives the attempt up."""
    return {
        NodeLost: Row(aborting.on_lost, _TO),
        NodeLeft: Row(aborting.on_lost, _TO),
        WorkerExited: Row(aborting.on_exited, (S.ABORTING,)),
        OrderFailed: Row(aborting.on_failed, (*forward, S.ABORTING)),
        Undone: Row(aborting.on_let_go, (*forward, S.ABORTING)),
        AbortRequested: Row(aborting.on_abort_requested, (S.ABORTING,)),
        TimePassed: Row(aborting.on_time, (*forward, S.ABORTING)),
        NodeAttached: _FROZEN,
        StoreRefused: _TRANSACTION_TELLS,
        AttemptStored: _RECORDED,
    }


_ANY_ANSWER: tuple[type[Event], ...] = (Held, Parked, GpuLocked, GpuSaved, Dumped)

TRANSITIONS: Table[AttemptState] = {
    S.ADMITTING: {
        AttemptStored: Row(parking.on_stored, (S.HOLDING, S.LOCKING, S.DUMPING)),
        StoreRefused: Row(aborting.on_store_refused, (S.ABORTED,)),
        NodeLost: Row(aborting.on_lost, (S.ABORTED,)),
        NodeLeft: Row(aborting.on_lost, (S.ABORTED,)),
        WorkerExited: Row(aborting.on_exited, (S.ABORTED,)),
        AbortRequested: Row(aborting.on_abort_requested, (S.ABORTED,)),
        TimePassed: Row(aborting.on_time, (S.ADMITTING, S.ABORTED)),
        NodeAttached: _FROZEN,
    },
    S.HOLDING: {
        Held: Row(parking.on_held, (S.HOLDING, S.PARKING, S.ABORTING)),
        **_held_state(S.HOLDING),
    },
    S.PARKING: {
        Held: _ANSWERED,
        Parked: Row(parking.on_parked, (S.PARKING, S.LOCKING, S.DUMPING, S.ABORTING)),
        **_held_state(S.PARKING),
    },
    S.LOCKING: {
        Held: _ANSWERED,
        Parked: _ANSWERED,
        GpuLocked: Row(parking.on_gpu_locked, (S.LOCKING, S.SAVING, S.ABORTING)),
        **_held_state(S.LOCKING),
    },
    S.SAVING: {
        Held: _ANSWERED,
        Parked: _ANSWERED,
        GpuLocked: _ANSWERED,
        GpuSaved: Row(parking.on_gpu_saved, (S.SAVING, S.DUMPING, S.ABORTING)),
        **_held_state(S.SAVING),
    },
    S.DUMPING: {
        Held: _ANSWERED,
        Parked: _ANSWERED,
        GpuLocked: _ANSWERED,
        GpuSaved: _ANSWERED,
        Dumped: Row(parking.on_dumped, (S.DUMPING, S.PERSISTING, S.ABORTING)),
        **_held_state(S.DUMPING),
    },
    S.PERSISTING: {
        **dict.fromkeys(_ANY_ANSWER, _ANSWERED),
        Resumed: Row(committing.on_resumed, (S.PERSISTING, S.COMMITTING)),
        Persisted: Row(committing.on_persisted, (S.PERSISTING, S.COMMITTING, S.ABORTING)),
        Undone: Row(aborting.on_let_go, (S.PERSISTING, S.ABORTING)),
        OrderFailed: Row(committing.on_failed, (S.PERSISTING, S.COMMITTING, S.ABORTING)),
        NodeLost: Row(committing.on_lost, (S.PERSISTING, S.COMMITTING, *_TO)),
        NodeLeft: Row(committing.on_lost, (S.PERSISTING, S.COMMITTING, *_TO)),
        WorkerExited: Row(committing.on_exited, (S.PERSISTING, S.COMMITTING)),
        AbortRequested: Row(aborting.on_abort_requested, _TO),
        TimePassed: Row(committing.on_time, (S.PERSISTING, S.COMMITTING, *_TO)),
        NodeAttached: Row(inheriting.on_back, (S.PERSISTING,)),
        StoreRefused: _TRANSACTION_TELLS,
        AttemptStored: _RECORDED,
    },
    S.COMMITTING: {
        **dict.fromkeys((*_ANY_ANSWER, Resumed, Persisted), _ANSWERED),
        SnapshotCommitted: Row(committing.on_committed, (S.STOPPING, S.COMMITTED)),
        CommitRefused: Row(aborting.on_commit_refused, _TO),
        AbortRequested: _TOO_LATE,
        TimePassed: Row(committing.on_commit_late, (S.COMMITTING,)),
        WorkerExited: Row(committing.on_exited_while_committing, (S.COMMITTING,)),
        **dict.fromkeys((OrderFailed, Undone), _STORED),
        **dict.fromkeys(
            (NodeLost, NodeLeft), Row(committing.on_gone_while_committing, (S.COMMITTING,))
        ),
        NodeAttached: Row(inheriting.on_back, (S.COMMITTING,)),
        StoreRefused: _TRANSACTION_TELLS,
        AttemptStored: _RECORDED,
    },
    S.STOPPING: {
        **dict.fromkeys((*_ANY_ANSWER, Resumed, Persisted), _ANSWERED),
        Stopped: Row(committing.on_stopped, (S.STOPPING, S.COMMITTED)),
        OrderFailed: Row(committing.on_stop_failed, (S.STOPPING, S.COMMITTED)),
        NodeLost: Row(committing.on_gone_while_stopping, (S.STOPPING, S.COMMITTED)),
        NodeLeft: Row(committing.on_gone_while_stopping, (S.STOPPING, S.COMMITTED)),
        WorkerExited: Row(committing.on_exited_while_stopping, (S.STOPPING, S.COMMITTED)),
        TimePassed: Row(committing.on_stop_late, (S.STOPPING, S.COMMITTED)),
        AbortRequested: _TOO_LATE,
        Undone: _STORED,
        SnapshotCommitted: Ignored("that is known already"),
        NodeAttached: Row(inheriting.on_back_while_stopping, (S.STOPPING, S.COMMITTED)),
        StoreRefused: _TRANSACTION_TELLS,
        AttemptStored: _RECORDED,
    },
    S.ABORTING: {
        Undone: Row(aborting.on_undone, _TO),
        OrderFailed: Row(aborting.UNDOING.on_failed, _TO),
        NodeLost: Row(aborting.UNDOING.on_lost, _TO),
        NodeLeft: Row(aborting.UNDOING.on_lost, _TO),
        WorkerExited: Row(aborting.on_exited_while_undoing, (S.ABORTING,)),
        NodeAttached: Row(aborting.UNDOING.on_found, (S.ABORTING,)),
        TimePassed: Row(aborting.UNDOING.on_late, _TO),
        **dict.fromkeys((*_ANY_ANSWER, Resumed, Persisted), _GIVEN_UP),
        AbortRequested: _GIVEN_UP,
        CommitRefused: _GIVEN_UP,
        StoreRefused: _GIVEN_UP,
        AttemptStored: _RECORDED,
    },
    # Whatever comes for an attempt that has ended is met at the door and never gets here.
    S.COMMITTED: {},
    S.ABORTED: {},
}
