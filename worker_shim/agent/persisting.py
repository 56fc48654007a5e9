"""PERSIST: what is staged goes to the store, while the worker runs on (or stands until STOP)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from coordinator.core.errors import Refused
from worker_shim.agent.order import Deadline, Order, Outcome
from worker_shim.agent.worker import Worker

Progress = Callable[[Order, int, int], None]


async def persist(worker: Worker, order: Order, deadline: Deadline, progress: Progress) -> Outcome:
    """Put the staged images into the store and complete the record; staging is then removed.

    A crash before the store's rename leaves nothing visible there; one after it leaves a directory
    that no snapshot names.
    """
    dumped = worker.dumped.get(order.action)
    if dumped is None:
        raise Refused(f"nothing of {order.action} is staged here", where=worker.where)
    drivers = worker.drivers
    place = drivers.staging.place(worker.job, worker.worker, order.action)
    stored_bytes = await asyncio.to_thread(_bytes_below, place)
    where, digest = await drivers.store.put(
        place,
        dumped.manifest,
        progress=lambda done, total: progress(order, done, total),
        deadline_s=deadline.left_s,
    )
    worker.published[order.action] = where
    record = replace(
        dumped.record,
        manifest=where,
        manifest_digest=digest,
        image_bytes=stored_bytes,
        held_ms=worker.held_ms,
    )
    del worker.dumped[order.action]
    await asyncio.to_thread(drivers.staging.drop, worker.job, worker.worker, order.action)
    return Outcome(record=record)


def _bytes_below(place: Path) -> int:
    return sum(path.stat().st_size for path in place.rglob("*") if path.is_file())
