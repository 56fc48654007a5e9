"""STOP: the snapshot is committed and the job is to end."""

from __future__ import annotations

import asyncio

from worker_shim.agent.order import Deadline, Order, Outcome
from worker_shim.agent.worker import Worker


async def stop(worker: Worker, order: Order, deadline: Deadline) -> Outcome:
    """Kill the worker where it stands, then remove its network lock and what was staged.

    The published images are the snapshot's and stay.
    """
    await worker.kill(deadline_s=deadline.left_s)
    await worker.drivers.network.unlock(worker.name, deadline_s=deadline.left_s)
    held_ms = worker.end_hold()
    worker.stopped, worker.stays = True, order.stay
    drop = worker.drivers.staging.drop
    await asyncio.to_thread(drop, worker.job, worker.worker, order.action)
    return Outcome(held_ms=held_ms)
