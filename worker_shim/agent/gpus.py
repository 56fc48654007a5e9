"""The GPU phases: a worker's processes with GPU state, one after another, in the tree's order.

Workers of one job on a node go by their numbers; those of several jobs take turns, process by
process: the driver is asked for one at a time.

Device memory becomes memory of its process, so that CRIU saves it with the rest. Between GPU_SAVE
and GPU_RESTORE no device may be open. All are restored before one is unlocked. Undo never trusts
memory: it asks the driver how each stands.
"""

from __future__ import annotations

import asyncio
import time

from coordinator.core.errors import AllstopError, DeadlinePassed, DriverError, NotReady
from coordinator.core.failures import listed
from coordinator.core.model import Cut
from worker_shim.agent import communicators, holding
from worker_shim.agent.order import Deadline, Order, Outcome
from worker_shim.agent.worker import Worker
from worker_shim.cuda.port import CudaState, GpuProcess
from worker_shim.inventory.inventory import Inventory
from worker_shim.inventory.recording import held_by
from worker_shim.process.proc import memory_of

CONTEXT_BYTES = 1 << 30  # of a process on a device, at most; it is made anew at a restore
LOOK_S = 2.0  # for a look at the GPUs beside the locks; a node stands still for it at most so long
ANSWER_S = 2.0  # of a lock's time: the driver gives up by itself before we do
POLL_S = 0.005
LEAST_S = 1.0  # a call that changes a process is not begun with less: it would be cut in the middle
STATE_S = 10.0  # for the driver to say how a process stands; the first time it attaches for that
RESTORING = 0.8  # of the time to put all back, what restores may take


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
    async with worker.drivers.device_turn:
        worker.gpus = await cuda.processes(tree, deadline_s=deadline.left_s)
    worker.gpu_bytes = 0
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
        await lower_first(worker, order, at_most_s=deadline.left_s)
        for process in worker.gpus:
            async with worker.drivers.device_turn:
                _require_time(worker, deadline, f"lock process {process.pid}")
                left_s = deadline.left_s
                timeout_s = left_s - min(ANSWER_S, left_s / 2)
                await cuda.lock(process, timeout_s=timeout_s, deadline_s=left_s)
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


async def lower_first(worker: Worker, order: Order, *, at_most_s: float) -> None:
    """Wait until the job's workers on this node with lower numbers have ended this phase.

    So lock, save and restore take the processes of the node in one order, which is that of the
    snapshot too. Raises DeadlinePassed, which names those that were waited for.
    """
    until = time.monotonic() + at_most_s

    def awaited() -> list[int]:
        return [
            each.worker
            for each in worker.beside()
            if each.worker < worker.worker
            and each.alive
            and each.action == order.action
            and order.done not in each.ended
        ]

    while lower := awaited():
        if time.monotonic() >= until:
            raise DeadlinePassed(
                f"{worker.name} has waited {at_most_s:.1f} s for its turn at the devices of this "
                f"node, which {listed([f'worker {each}' for each in lower])} had",
                where=worker.where,
                advice="allow the phase more time: see `--policy` of the coordinator",
            )
        await asyncio.sleep(POLL_S)


async def save(worker: Worker, order: Order, deadline: Deadline) -> Outcome:
    """Bring device memory into the processes' own, then look: all saved, no device left open."""
    worker.require_claimed(order.action)
    cuda = worker.drivers.cuda
    await lower_first(worker, order, at_most_s=deadline.left_s)
    before = _memory_bytes(worker)
    for process in worker.gpus:
        async with worker.drivers.device_turn:
            _require_time(worker, deadline, f"save process {process.pid}")
            await cuda.checkpoint(process, deadline_s=deadline.left_s)
    deadline.lap("save")
    for process in worker.gpus:
        async with worker.drivers.device_turn:  # its time begins with its turn
            state = await cuda.state(process, deadline_s=min(STATE_S, deadline.left_s))
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
    seen = worker.gpus_seen if worker.gpus_seen is not None else Inventory()
    held = held_by(seen, pids)
    contexts = sum(len(pids & by_pid.keys()) for by_pid in seen.held.values())
    expected = sum(each.held_bytes for each in held) - CONTEXT_BYTES * contexts
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
    await lower_first(worker, order, at_most_s=deadline.left_s)
    for process in worker.gpus:
        async with worker.drivers.device_turn:
            _require_time(worker, deadline, f"restore process {process.pid}")
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
            _require_time(worker, deadline, f"unlock process {process.pid}")
            await worker.drivers.cuda.unlock(process, deadline_s=deadline.left_s)
    count, worker.gpus = len(worker.gpus), ()
    return Outcome(note=f"{count} unlocked")


def _require_time(worker: Worker, deadline: Deadline, doing: str) -> None:
    """Raise DeadlinePassed rather than begin what there is no time for."""
    if deadline.left_s < LEAST_S:
        raise DeadlinePassed(
            f"no time is left to {doing}",
            where=worker.where,
            advice="allow the phase more with --phase-deadline",
            definite=False,
        )


async def put_back(worker: Worker, deadline: Deadline) -> None:
    """Undo from any phase: all that are saved are restored, then all that are locked are unlocked.

    The tree has to run. Each process has a share of the time, so that one that hangs leaves some
    for the others. Goes through all of them; raises DriverError for those that are not well
    afterwards.
    """
    trouble: list[str] = []
    living = _living(worker)
    restoring = Deadline(deadline.left_s * RESTORING)
    ill: set[GpuProcess] = set()
    for until, step in ((restoring, _restore), (deadline, _unlock)):
        for at, process in enumerate(living):
            try:
                if process not in ill:
                    async with worker.drivers.device_turn:
                        share = Deadline(until.left_s / (len(living) - at))
                        await step(worker, process, share)
            except AllstopError as error:
                ill.add(process)
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


async def _restore(worker: Worker, process: GpuProcess, share: Deadline) -> None:
    """What is saved is on its devices again, and locked."""
    if await _state(worker, process, share) is CudaState.CHECKPOINTED:
        _require_time(worker, share, f"restore process {process.pid}")
        await worker.drivers.cuda.restore(process, {}, deadline_s=share.left_s)


async def _unlock(worker: Worker, process: GpuProcess, share: Deadline) -> None:
    """It works again; raises DriverError for one that does not."""
    state = await _state(worker, process, share)
    if state is CudaState.LOCKED:
        await worker.drivers.cuda.unlock(process, deadline_s=share.left_s)
        state = await _state(worker, process, share)
    if state is not CudaState.RUNNING:
        raise DriverError(f"process {process.pid} is {state}", where=worker.where)


async def _state(worker: Worker, process: GpuProcess, share: Deadline) -> CudaState:
    return await worker.drivers.cuda.state(process, deadline_s=min(STATE_S, share.left_s))


async def seen(worker: Worker, deadline: Deadline) -> tuple[str, ...]:
    """Processes of the present action that are off their devices, and how: "123 is locked".

    Each has a share of the time; one of which the driver does not tell counts as off.
    """
    told: list[str] = []
    living = _living(worker)
    for at, process in enumerate(living):
        try:
            state = await _state(worker, process, Deadline(deadline.left_s / (len(living) - at)))
        except AllstopError as error:
            told.append(f"{process.pid} is not known to be on them ({error.what})")
        else:
            if state is not CudaState.RUNNING:
                told.append(f"{process.pid} is {state}")
    return tuple(told)


def _living(worker: Worker) -> list[GpuProcess]:
    living = worker.tree().living
    return [each for each in worker.gpus if (each.pid, each.start_ticks) in living]


def _memory_bytes(worker: Worker) -> int:
    memory = [memory_of(process.pid) for process in worker.gpus]
    return sum(each.resident_bytes + each.swapped_bytes for each in memory)
