"""The GPU phases for workers that use none: looked at, and nothing to do."""

from __future__ import annotations

import asyncio

from coordinator.core.errors import NotReady
from worker_shim.agent.order import Deadline, Order, Outcome
from worker_shim.agent.worker import Worker


async def no_gpus(worker: Worker, order: Order, deadline: Deadline) -> Outcome:
    """Succeed when no process of the worker holds a GPU; raise NotReady otherwise."""
    worker.require_claimed(order.action)
    pids = await asyncio.to_thread(worker.drivers.cuda.processes, worker.tree())
    if pids:
        raise NotReady(
            f"processes {list(pids)} use a GPU, which this version cannot save",
            where=worker.where,
            advice="run the job on CPU, or wait for GPU support",
        )
    return Outcome(note="no GPU process in this worker")
