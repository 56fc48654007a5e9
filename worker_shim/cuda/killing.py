"""Taking processes off their devices before they are killed, where the driver wants that."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable

import structlog

from worker_shim.cuda.port import CudaDriver, CudaState, GpuProcess
from worker_shim.process.port import Tree

log = structlog.get_logger(__name__)

ON_DEVICE = (CudaState.RUNNING, CudaState.LOCKED)
LOOK_S_MAX = 30.0  # for the driver to say who uses it, and how each stands
LOCKING = 0.5  # of what one process may take: its work may never end, since its peers are dead


async def take_off(
    cuda: CudaDriver,
    tree: Tree,
    turn: asyncio.Lock,
    go_on: Callable[[], Awaitable[None]],
    *,
    deadline_s: float,
) -> None:
    """Lock and checkpoint every process of the tree that has a device, each in a share of the time.

    `turn` is that of the node's processes with their driver; `go_on` lets the tree run, as the
    driver's thread in it has to. Some drivers hang the host when a process that was restored once
    is killed on its device (cuda-checkpoint issue 53, 595.71.05). No error: one that does not let
    go is killed all the same, since nothing else ends it.
    """
    until = time.monotonic() + deadline_s
    on_device = await _on_device(cuda, tree, deadline_s=min(LOOK_S_MAX, deadline_s / 4))
    if not on_device:
        return  # what is saved may stand still
    await go_on()
    for at, (process, state) in enumerate(on_device):
        share_s = (until - time.monotonic()) / (len(on_device) - at)
        try:
            async with asyncio.timeout(share_s), turn:
                await _take_off(cuda, process, state, share_s)
        except Exception as error:
            log.warning("killed on its device", pid=process.pid, why=str(error))


async def _on_device(
    cuda: CudaDriver, tree: Tree, *, deadline_s: float
) -> list[tuple[GpuProcess, CudaState]]:
    """Processes that have a device, and how they stand; without those that nothing is told of."""
    until = time.monotonic() + deadline_s
    on_device: list[tuple[GpuProcess, CudaState]] = []
    try:
        found = await cuda.processes(tree, deadline_s=deadline_s / 2)
    except Exception as error:
        log.warning("killed on their devices", pids=list(tree.pids), why=str(error))
        return []
    for at, process in enumerate(found):
        share_s = (until - time.monotonic()) / (len(found) - at)
        try:
            state = await cuda.state(process, deadline_s=share_s)
        except Exception as error:
            log.warning("killed on its device", pid=process.pid, why=str(error))
        else:
            on_device += [(process, state)] if state in ON_DEVICE else []
    return on_device


async def _take_off(
    cuda: CudaDriver, process: GpuProcess, state: CudaState, within_s: float
) -> None:
    until = time.monotonic() + within_s
    if state is CudaState.RUNNING:
        lock_s = within_s * LOCKING
        await cuda.lock(process, timeout_s=lock_s, deadline_s=lock_s)
    await cuda.checkpoint(process, deadline_s=until - time.monotonic())
