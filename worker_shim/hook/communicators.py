"""NCCL's communicators of this rank: destroyed while it is parked, built anew as it is let go.

By NCCL's own checkpoint shim (contrib/nccl_checkpoint), which was preloaded. Standard library only;
nothing here raises into the job.
"""

from __future__ import annotations

import os
from collections.abc import Callable

from worker_shim.hook.page import (
    COMMUNICATORS_DOWN,
    COMMUNICATORS_FAILED,
    COMMUNICATORS_GOING_DOWN,
    COMMUNICATORS_REBUILDING,
    COMMUNICATORS_UP,
    STATE_REBUILDING,
)
from worker_shim.hook.slot import Slot

MODE_VARIABLE = "ALLSTOP_NCCL_MODE"
REBUILD = "rebuild"


class Communicators:
    """What is done to them, and where that is written down."""

    def __init__(self, slot: Slot, prepare: Callable[[], int], restore: Callable[[], int]) -> None:
        """`prepare` and `restore` are the shim's; both return 0 when all went well."""
        self._slot = slot
        self._prepare = prepare
        self._restore = restore
        self._down = False  # the process's own, so part of a snapshot
        slot.put("communicators", COMMUNICATORS_UP)

    def take_down(self) -> None:
        """Destroy them, once; every rank of the job does it at this boundary."""
        if self._down:
            return
        self._down = True
        self._slot.put("communicators", COMMUNICATORS_GOING_DOWN)
        self._note(int(self._prepare()), COMMUNICATORS_DOWN)

    def rebuild(self) -> None:
        """Build them anew where they are down; waits for the other ranks of each."""
        if not self._down:
            return
        self._slot.put("state", STATE_REBUILDING)
        self._slot.put("communicators", COMMUNICATORS_REBUILDING)
        self._down = False
        self._note(int(self._restore()), COMMUNICATORS_UP)

    def _note(self, result: int, well: int) -> None:
        self._slot.put("nccl_result", result & 0xFFFFFFFF)
        self._slot.put("communicators", COMMUNICATORS_FAILED if result else well)


def find(slot: Slot) -> Communicators | None:
    """Those of this process; None when they are to be left alone, or the shim is not here."""
    if os.environ.get(MODE_VARIABLE) != REBUILD:
        return None
    import ctypes

    process = ctypes.CDLL(None)
    try:
        found = Communicators(slot, process.ncclCheckpointPrepare, process.ncclCheckpointRestore)
    except AttributeError:
        return None
    ask = getattr(process, "ncclCheckpointGetVersion", None)
    slot.put("shim_nccl", 0 if ask is None else _built_for(ask))
    return found


def _built_for(ask: Callable[..., int]) -> int:
    """The version code of the NCCL that the shim was built for; 0 where it does not say."""
    import ctypes

    own, nccl = ctypes.c_int(0), ctypes.c_int(0)
    failed = ask(ctypes.byref(own), ctypes.byref(nccl))
    return 0 if failed else max(0, nccl.value)
