"""The GPU phases: a worker's processes with GPU state, one after another, in the tree's order.

Workers of one node take turns, process by process: the driver is asked for one at a time.

Device memory becomes memory of its process, so that CRIU saves it with the rest. Between GPU_SAVE
and GPU_RESTORE no device may be open. Undo never trusts memory: it asks the driver how each stands.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable

from coordinator.core.errors import AllstopError, DriverError, NotReady
from coordinator.core.model import Cut
from worker_shim.agent import communicators, holding
from worker_shim.agent.order import Deadline, Order, Outcome
from worker_shim.agent.worker import Worker
from worker_shim.cuda.port import CudaState, GpuProcess
from worker_shim.inventory.inventory import Inventory
from worker_shim.inventory.recording import held_by

CONTEXT_BYTES = 1 << 30  # of a process on a device, at most; it is made anew at a restore
LOOK_S = 2.0  # for a look at the GPUs beside the locks; a node stands still for it at most so long
UNLOCK_S = 2.0  # of a lock's time, kept to unlock the others when it runs out


async def lock(worker: Worker, order: Order, deadline: Deadline) -> Outcome:
    """Lock every process of the worker that has GPU state; its ranks are parked.

    Raises NotReady for one that has a device open without state of its own, which CRIU could not
    save, and DriverError for a lock that fails or runs out of time. What was locked before that
    stays so until UNDO.
    """
    tree, cuda = worker.require_tree(), worker.drivers.cuda
    if order.cut is Cut.FREEZE:
        worker.claim(order.action)
        await holding.check(worker, tree)
        worker.begin_hold()
    else:
        worker.require_claimed(order.action)
    await communicators.take_down(worker, order, deadline)
    worker.gpus, worker.gpu_bytes = await cuda.processes(tree, deadline_s=deadline.left_s), 0
    known = {process.pid for process in worker.gpus}
    holders = await asyncio.to_thread(cuda.holders, tree)
    if idle := [pid for pid in holders if pid not in known]:
        raise NotReady(
            f"processes {idle} have a GPU open and no state on it: they were forked from one that "
            "uses it",
            where=worker.where,
            advice="start DataLoader workers before the first use of CUDA, or by spawn; or end "
            "them between epochs (persistent_workers=False)",
        )
    deadline.lap("look")
    looking = asyncio.ensure_future(_look(worker, deadline))
    try:
        for process in worker.gpus:
            async with worker.drivers.device_turn:
                timeout_s = max(UNLOCK_S, deadline.left_s - UNLOCK_S)
                await cuda.lock(process, timeout_s=timeout_s, deadline_s=deadline.left_s)
    finally:
        worker.gpus_seen = await looking
    deadline.lap("lock")
    return Outcome(note=f"{len(worker.gpus)} locked")


async def _look(worker: Worker, deadline: Deadline) -> Inventory | None:
    """What its GPUs hold while its ranks are parked: from one step to the next it may change."""
    inventory = worker.drivers.gpus
    if inventory is None or not worker.gpus:
        return None
    return await inventory.since(time.monotonic(), wait_s=min(LOOK_S, deadline.left_s / 2))


async def save(worker: Worker, order: Order, deadline: Deadline) -> Outcome:
    """Bring device memory into the processes' own, then look: all saved, no device left open."""
    worker.require_claimed(order.action)
    cuda = worker.drivers.cuda
    before = _memory_bytes(worker)
    for process in worker.gpus:
        async with worker.drivers.device_turn:
            await cuda.checkpoint(process, deadline_s=deadline.left_s)
    deadline.lap("save")
    for process in worker.gpus:
        state = await cuda.state(process, deadline_s=deadline.left_s)
        if state is not CudaState.CHECKPOINTED:
            raise DriverError(
                f"process {process.pid} is {state} after its device memory was saved",
                where=worker.where,
                definite=False,
            )
    left = await asyncio.to_thread(cuda.holders, worker.tree())
    if left:
        raise DriverError(
            f"processes {list(left)} still have a GPU open after it was saved",
            where=worker.where,
            advice="drivers before 570 leave devices open that NVML uses; processes forked after "
            "CUDA was used keep them too",
            definite=False,
        )
    worker.gpu_bytes = max(0, _memory_bytes(worker) - before)
    unproven = "" if _require_grown(worker) else ", which nobody could compare with their GPUs"
    deadline.lap("look")
    return Outcome(note=f"{worker.gpu_bytes} bytes of device memory{unproven}")


def _require_grown(worker: Worker) -> bool:
    """What was in the devices is in the processes now, or the driver has said so for nothing.

    Where it is known what they held there when they were locked, which is returned; a context,
    which is not saved as memory, counts too.
    """
    pids = frozenset(process.pid for process in worker.gpus)
    held = held_by(worker.gpus_seen, pids) if worker.gpus_seen is not None else ()
    expected = sum(each.held_bytes for each in held) - CONTEXT_BYTES * len(held) * len(pids)
    if worker.gpu_bytes < expected:
        raise DriverError(
            f"the ranks held {sum(each.held_bytes for each in held)} bytes on their GPUs, and have "
            f"grown by {worker.gpu_bytes} when these were saved",
            where=worker.where,
            advice="look at the kernel's log; nothing is known to be lost",
            definite=False,
        )
    return bool(held)


async def restore(worker: Worker, order: Order, deadline: Deadline) -> Outcome:
    """Put device memory back; the tree runs for that, parked and without a network."""
    worker.require_claimed(order.action)
    cuda = worker.drivers.cuda
    await worker.drivers.process.go_on(worker.root_pid)  # the driver's thread in it has to run
    found = await cuda.processes(worker.require_tree(), deadline_s=deadline.left_s)
    worker.gpus = _in_order(worker, found)
    deadline.lap("look")
    devices = {move.old: move.new for move in order.devices}
    for process in worker.gpus:
        async with worker.drivers.device_turn:
            await cuda.restore(process, devices, deadline_s=deadline.left_s)
    deadline.lap("restore")
    return Outcome(note=f"{len(worker.gpus)} restored")


def _in_order(worker: Worker, found: tuple[GpuProcess, ...]) -> tuple[GpuProcess, ...]:
    """As they were locked and saved; raises DriverError where they are not the ones of the images.

    IPC inside a node wants the order of the checkpoint (NVIDIA's own demo of it says so).
    """
    saved = worker.restoration.record.gpu_pids if worker.restoration is not None else ()
    by_pid = {process.pid: process for process in found}
    if set(saved) != by_pid.keys():
        raise DriverError(
            f"processes {sorted(by_pid)} have GPU state; those of the images are {sorted(saved)}",
            where=worker.where,
            advice="does this node run the driver of the snapshot? `allstop plan` compares them",
        )
    return tuple(by_pid[pid] for pid in saved)


async def unlock(worker: Worker, order: Order, deadline: Deadline) -> Outcome:
    """Let the processes use their devices; every worker of the job is back."""
    worker.require_claimed(order.action)
    for process in worker.gpus:
        async with worker.drivers.device_turn:
            await worker.drivers.cuda.unlock(process, deadline_s=deadline.left_s)
    count, worker.gpus = len(worker.gpus), ()
    return Outcome(note=f"{count} unlocked")


async def put_back(worker: Worker, deadline: Deadline) -> None:
    """Undo from any phase: what is saved is restored, what is locked is unlocked.

    The tree has to run. Goes through all of them; raises DriverError for those that are not well
    afterwards.
    """
    trouble: list[str] = []
    for process in _living(worker):
        try:
            async with worker.drivers.device_turn:
                await _put_back(worker, process, deadline)
        except AllstopError as error:
            trouble.extend((str(error), *error.details))
    if trouble:
        raise DriverError(
            f"GPU state is not back: {trouble[0]}",
            where=worker.where,
            advice="the job goes back to its last snapshot; restore it",
            definite=False,
            details=tuple(trouble),
        )
    worker.gpus = ()


async def _put_back(worker: Worker, process: GpuProcess, deadline: Deadline) -> None:
    cuda = worker.drivers.cuda
    steps: dict[CudaState, Callable[[], Awaitable[None]]] = {
        CudaState.CHECKPOINTED: lambda: cuda.restore(process, {}, deadline_s=deadline.left_s),
        CudaState.LOCKED: lambda: cuda.unlock(process, deadline_s=deadline.left_s),
    }
    for _ in range(len(steps) + 1):
        state = await cuda.state(process, deadline_s=deadline.left_s)
        if state is CudaState.RUNNING:
            return
        step = steps.get(state)
        if step is None:
            raise DriverError(f"process {process.pid} is {state}", where=worker.where)
        await step()
    raise DriverError(f"process {process.pid} does not run again", where=worker.where)


async def seen(worker: Worker, deadline: Deadline) -> tuple[str, ...]:
    """Processes of the present action that are off their devices, and how: "123 is locked"."""
    told: list[str] = []
    for process in _living(worker):
        state = await worker.drivers.cuda.state(process, deadline_s=deadline.left_s)
        if state is not CudaState.RUNNING:
            told.append(f"{process.pid} is {state}")
    return tuple(told)


def _living(worker: Worker) -> list[GpuProcess]:
    living = worker.tree().living
    return [each for each in worker.gpus if (each.pid, each.start_ticks) in living]


def _memory_bytes(worker: Worker) -> int:
    pids = {process.pid for process in worker.gpus}
    return sum(each.rss_bytes for each in worker.tree().processes if each.pid in pids)
