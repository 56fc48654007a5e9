"""The restore round: one table, which is its documentation.

    ADMITTING -> FETCHING -> CLEARING -> RESTORING -> (GPU_RESTORING -> GPU_UNLOCKING ->)
              -> RELEASING -> RUNNING                       anything -> FAILING -> FAILED

ALL_BACK is the moment when every tree is restored and still stopped; only then is anything
released: first every network (OPEN), so that nobody sends to one who drops it, then the ranks.
A restore that fails kills what it restored, leaves the snapshot untouched, and leaves
the job's incarnation raised. What still runs of the older one is the job again, in the raised
incarnation, where nothing of it had been cleared away (ADMITTING, FETCHING); else it is not.

The arrows are in `clearing` and `releasing` (forward), in `losing` and in `failing`.
"""

from __future__ import annotations

from coordinator.core import clearing, failing, losing, releasing
from coordinator.core.events import (
    AbortRequested,
    Cleared,
    Event,
    Fetched,
    GpuRestored,
    GpuUnlocked,
    NodeAttached,
    NodeLeft,
    NodeLost,
    NodeReported,
    Opened,
    OrderFailed,
    Released,
    RestoreAdmitted,
    Restored,
    RestoreStored,
    StoreRefused,
    TimePassed,
    Undone,
    WorkerExited,
)
from coordinator.core.model import RestoreState
from coordinator.core.table import Ignored, Row, Table

S = RestoreState

_TO = (S.FAILING, S.FAILED)
_ANSWERED = Ignored("that order was answered before")
_GIVEN_UP = Ignored("the restore is being cleared away")
_OLD = Ignored("a worker of the old incarnation ended; it is to be cleared away anyway")
_FROZEN = Ignored("the plan was settled when the restore began")
_ADMITTED = Ignored("that the restore is recorded is known already")


def _trouble(state: S) -> dict[type[Event], Row | Ignored]:
    """Rows of every state after ADMITTING: any trouble fails the restore."""
    return {
        NodeLost: Row(losing.on_lost, (state, *_TO)),
        NodeLeft: Row(losing.on_lost, (state, *_TO)),
        OrderFailed: Row(failing.on_failed, (state, S.FAILING)),
        Undone: Row(failing.on_let_go, (state, S.FAILING)),
        AbortRequested: Row(failing.on_abort_requested, _TO),
        TimePassed: Row(failing.on_time, (state, *_TO)),
        RestoreAdmitted: _ADMITTED,
        NodeAttached: _FROZEN,
        StoreRefused: Ignored("no write is awaited in this state"),
        RestoreStored: Ignored("a later state was recorded; nothing waits for that"),
    }


TRANSITIONS: Table[RestoreState] = {
    S.ADMITTING: {
        RestoreAdmitted: Row(clearing.on_admitted, (S.FETCHING,)),
        StoreRefused: Row(failing.on_store_refused, (S.FAILED,)),
        NodeLost: Row(losing.on_lost, (S.ADMITTING, S.FAILED)),
        NodeLeft: Row(losing.on_lost, (S.ADMITTING, S.FAILED)),
        AbortRequested: Row(failing.on_abort_requested, (S.FAILED,)),
        TimePassed: Row(failing.on_time, (S.ADMITTING, S.FAILED)),
        WorkerExited: _OLD,
        NodeAttached: Row(clearing.on_found, (S.ADMITTING,)),
    },
    S.FETCHING: {
        Fetched: Row(clearing.on_fetched, (S.FETCHING, S.CLEARING)),
        WorkerExited: _OLD,
        **_trouble(S.FETCHING),
        NodeAttached: Row(clearing.on_found, (S.FETCHING,)),
    },
    S.CLEARING: {
        Fetched: _ANSWERED,
        Cleared: Row(clearing.on_cleared, (S.CLEARING, S.RESTORING, *_TO)),
        WorkerExited: Row(clearing.on_stray_ended, (S.CLEARING, S.RESTORING, *_TO)),
        NodeReported: Row(clearing.on_report, (S.CLEARING, S.RESTORING, *_TO)),
        **_trouble(S.CLEARING),
        RestoreStored: Row(clearing.on_clear_recorded, (S.CLEARING,)),
        StoreRefused: Row(failing.on_step_refused, _TO),
        NodeLost: Row(losing.on_lost, (S.CLEARING, S.RESTORING, *_TO)),
        NodeLeft: Row(losing.on_lost, (S.CLEARING, S.RESTORING, *_TO)),
    },
    S.RESTORING: {
        **dict.fromkeys((Fetched, Cleared), _ANSWERED),
        Restored: Row(releasing.on_restored, (S.RESTORING, S.GPU_RESTORING, S.RELEASING)),
        WorkerExited: Row(failing.on_exited, (S.RESTORING, S.FAILING)),
        **_trouble(S.RESTORING),
    },
    S.GPU_RESTORING: {
        **dict.fromkeys((Fetched, Cleared, Restored), _ANSWERED),
        GpuRestored: Row(releasing.on_gpu_restored, (S.GPU_RESTORING, S.GPU_UNLOCKING)),
        WorkerExited: Row(failing.on_exited, (S.GPU_RESTORING, S.FAILING)),
        **_trouble(S.GPU_RESTORING),
    },
    S.GPU_UNLOCKING: {
        **dict.fromkeys((Fetched, Cleared, Restored, GpuRestored), _ANSWERED),
        GpuUnlocked: Row(releasing.on_gpu_unlocked, (S.GPU_UNLOCKING, S.RELEASING)),
        WorkerExited: Row(failing.on_exited, (S.GPU_UNLOCKING, S.FAILING)),
        **_trouble(S.GPU_UNLOCKING),
    },
    S.RELEASING: {
        **dict.fromkeys((Fetched, Cleared, Restored, GpuRestored, GpuUnlocked), _ANSWERED),
        Opened: Row(releasing.on_opened, (S.RELEASING, *_TO)),
        Released: Row(releasing.on_released, (S.RELEASING, S.RUNNING)),
        WorkerExited: Row(failing.on_exited, (S.RELEASING, S.FAILING)),
        **_trouble(S.RELEASING),
        RestoreStored: Row(releasing.on_release_recorded, (S.RELEASING, *_TO)),
        StoreRefused: Row(failing.on_step_refused, (S.RELEASING, *_TO)),
        NodeAttached: Row(releasing.on_found, (S.RELEASING, S.RUNNING, *_TO)),
        NodeLost: Row(losing.on_lost_while_releasing, (S.RELEASING, *_TO)),
        NodeLeft: Row(losing.on_lost_while_releasing, (S.RELEASING, *_TO)),
    },
    S.FAILING: {
        Undone: Row(failing.UNDOING.on_undone, _TO),
        OrderFailed: Row(failing.UNDOING.on_failed, _TO),
        NodeLost: Row(failing.UNDOING.on_lost, _TO),
        NodeLeft: Row(failing.UNDOING.on_lost, _TO),
        NodeAttached: Row(failing.on_found, (S.FAILING,)),
        TimePassed: Row(failing.UNDOING.on_late, _TO),
        **dict.fromkeys(
            (Fetched, Cleared, Restored, GpuRestored, GpuUnlocked, Opened, Released), _GIVEN_UP
        ),
        **dict.fromkeys((AbortRequested, StoreRefused, WorkerExited), _GIVEN_UP),
        **dict.fromkeys((RestoreAdmitted, RestoreStored), _ADMITTED),
    },
    # Whatever comes for a restore that has ended is met at the door and never gets here.
    S.RUNNING: {},
    S.FAILED: {},
}
