"""Taking processes off their devices before they are killed, where the driver wants that."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable

import structlog

from coordinator.core.errors import AllstopError
from worker_shim.cuda.port import CudaDriver, CudaState, GpuProcess
from worker_shim.process.port import Tree

log = structlog.get_logger(__name__)

ON_DEVICE = (CudaState.RUNNING, CudaState.LOCKED)


async def take_off(
    cuda: CudaDriver, tree: Tree, go_on: Callable[[], Awaitable[None]], *, deadline_s: float
) -> None:
    """Lock and checkpoint every process of the tree that has a device; `go_on` lets it run.

    Some drivers hang the host when a process that was restored once is killed on its device
    (cuda-checkpoint issue 53, 595.71.05). Never raises: one that does not let go is killed all the
    same, since nothing else ends it.
    """
    until = time.monotonic() + deadline_s
    try:
        found = await cuda.processes(tree, deadline_s=deadline_s)
        states = [await cuda.state(each, deadline_s=_left_s(until)) for each in found]
        if not any(state in ON_DEVICE for state in states):
            return
        await go_on()  # the driver's thread in it has to run
        for process, state in zip(found, states, strict=True):
            await _take_off(cuda, process, state, until)
    except AllstopError as error:
        log.warning("killed on its device", pids=list(tree.pids), why=str(error))


async def _take_off(cuda: CudaDriver, process: GpuProcess, state: CudaState, until: float) -> None:
    if state is CudaState.RUNNING:
        left_s = _left_s(until)
        await cuda.lock(process, timeout_s=left_s, deadline_s=left_s)
    if state in ON_DEVICE:
        await cuda.checkpoint(process, deadline_s=_left_s(until))


def _left_s(until: float) -> float:
    return max(0.1, until - time.monotonic())
