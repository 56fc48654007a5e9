"""PERSIST: what is staged goes to the store, while the worker runs on (or stands until STOP)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from coordinator.core.errors import DriverError, Refused
from coordinator.core.health_records import GpuTrouble
from worker_shim.agent.order import Deadline, Order, Outcome
from worker_shim.agent.worker import Dumped, Worker
from worker_shim.images.staging import listed

Progress = Callable[[Order, int, int], None]


async def persist(worker: Worker, order: Order, deadline: Deadline, progress: Progress) -> Outcome:
    """Put the staged images into the store and complete the record.

    They stay in staging while there is room, for a restore here.

    Raises DriverError when staging is not what the dump left there: with nothing published, or,
    where it was changed while it was copied, with something that UNDO deletes.
    A crash leaves packs that no manifest names, or a manifest that no snapshot names; both are
    collected.
    """
    dumped = worker.dumped.get(order.action)
    if dumped is None:
        raise Refused(f"nothing of {order.action} is staged here", where=worker.where)
    drivers = worker.drivers
    place = drivers.staging.place(worker.job, worker.worker, order.action)
    await asyncio.to_thread(_require_as_dumped, worker, dumped, place)
    stored = await drivers.store.put(
        place,
        dumped.manifest,
        base=order.base,
        progress=lambda done, total: progress(order, done, total),
        deadline_s=deadline.left_s,
    )
    worker.published.add(order.action)
    await asyncio.to_thread(_require_as_dumped, worker, dumped, place)
    await asyncio.to_thread(_require_outlived, worker, dumped)
    record = replace(
        dumped.record,
        manifest=stored.place,
        manifest_digest=stored.digest,
        image_bytes=sum(dumped.staged.values()),
        stored_bytes=stored.stored_bytes,
        shared_bytes=stored.shared_bytes,
        held_ms=worker.held_ms,
        troubles=await _troubles(worker, dumped),
    )
    del worker.dumped[order.action]
    await asyncio.to_thread(drivers.staging.settle, worker.job, worker.worker, order.action)
    return Outcome(record=record)


async def _troubles(worker: Worker, dumped: Dumped) -> tuple[GpuTrouble, ...]:
    """What the GPUs have had up to now: what was saved through them may be wrong."""
    health = worker.drivers.health
    return await health.settled() if health is not None and dumped.record.gpu_pids else ()


def _require_as_dumped(worker: Worker, dumped: Dumped, place: Path) -> None:
    """Torn images must never become a snapshot: every digest in it would be right."""
    try:
        now = listed(place)
    except OSError as error:
        raise _changed(worker, f"{place} cannot be read", str(error)) from error
    for name, size in dumped.staged.items():
        if name not in now:
            raise _changed(worker, f"{name} is gone from staging", f"looked in {place}")
        if now[name] != size:
            raise _changed(
                worker,
                f"{name} in staging has {now[name]} bytes, the dump left {size}",
                f"looked in {place}",
            )
    if more := sorted(set(now) - set(dumped.staged)):
        raise _changed(worker, f"{more[0]} in staging is not of the dump", f"looked in {place}")


def _require_outlived(worker: Worker, dumped: Dumped) -> None:
    """Whoever was dumped must have lived until the cut, which is over when this order comes.

    The kernel of a process that dies tells its peers, and one of them may have been dumped after
    it heard of that: its connection would come back broken.
    """
    if not dumped.outlived and not dumped.outlived_by(worker.tree()):
        raise DriverError(
            "a process of the worker ended after it was dumped and before it was let go",
            where=worker.where,
            advice="other workers may have been dumped when they knew of it: take a new checkpoint",
        )


def _changed(worker: Worker, what: str, detail: str) -> DriverError:
    return DriverError(
        what,
        where=worker.where,
        advice="something else writes to the staging directory: take a new checkpoint, and give "
        "every shim of this machine a --node name of its own",
        details=(detail,),
    )
