"""DUMP: freeze the worker and write it to staging; it stays frozen until it is told to go on."""

from __future__ import annotations

import asyncio
import os
import time
from dataclasses import replace
from pathlib import Path

from coordinator.core.errors import DriverError, Refused
from coordinator.core.model import Cut, WorkerRecord
from worker_shim.agent import communicators, holding, putting_back
from worker_shim.agent.launched import named_in
from worker_shim.agent.order import Deadline, Order, Outcome
from worker_shim.agent.worker import Dumped, Worker
from worker_shim.criu.port import DumpStats, ImageFacts
from worker_shim.files.port import OpenFile
from worker_shim.images import manifest as manifests
from worker_shim.images.port import Manifest
from worker_shim.images.staging import FILES, IMAGES, listed
from worker_shim.inventory.recording import gpu_facts
from worker_shim.network.port import Sockets
from worker_shim.process.port import DEAD, Tree
from worker_shim.process.proc import memory_of

SETTLE_S_MAX = 5.0
SETTLE_POLL_S = 0.002
PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
AT_REST = "Tt" + DEAD
UNCOUNTED, UNCOUNTED_BYTES = 0.01, 16 << 20  # by which the kernel may miscount a process's memory
LOOK_AT_LOGS = "was device memory really saved? Look at CRIU's and the kernel's log"


async def dump(worker: Worker, order: Order, deadline: Deadline) -> Outcome:
    """SIGSTOP, network lock, files, criu; then check that what should be in the images is.

    The tree stays stopped and locked, also after a failure: UNDO or RESUME lets it go. A crash
    half-way leaves staging that the next start sweeps.
    """
    if order.cut is Cut.FREEZE:
        worker.claim(order.action)
        tree = worker.require_tree()
        await holding.check(worker, tree)
        holding.begin_programs(worker, tree)
    else:
        worker.require_claimed(order.action)
        tree = worker.require_tree()
        _require_parked(worker, tree)
    await communicators.take_down(worker, order, deadline)
    drivers = worker.drivers
    await _require_no_device(worker, tree)
    need = holding.room_needed(tree)
    await worker.dropped(deadline_s=deadline.left_s)
    place = drivers.staging.create(worker.job, worker.worker, order.action, need_bytes=need)
    deadline.lap("check")

    tree = await _stop(worker, deadline)
    sockets = drivers.network.sockets(tree)
    locking = asyncio.ensure_future(
        drivers.network.lock(worker.name, sockets, deadline_s=deadline.left_s)
    )
    try:
        open_files = await asyncio.to_thread(
            drivers.files.cut, tree, place / FILES, keeping=worker.keeping
        )
    finally:
        deadline.lap("files")
        await locking
        deadline.lap("lock")
    images = place / IMAGES
    try:
        stats = await drivers.images.dump(worker.root_pid, images, deadline_s=deadline.left_s)
    except DriverError as error:
        _require_living(worker, tree, worker.tree(), (error.what, *error.details))
        raise
    deadline.lap("criu")
    facts = await asyncio.to_thread(drivers.images.facts, images)
    await _require_whole(worker, tree, facts, stats, deadline)
    open_files = await asyncio.to_thread(_as_criu_saw, worker, open_files, place)
    deadline.lap("look")
    worker.ranks = worker.page.ranks(tree) if worker.page is not None else ()
    record = replace(
        await _record(worker, tree, sockets, stats, facts), **putting_back.recorded(open_files)
    )
    manifest = _manifest(worker, order, open_files)
    staged = await asyncio.to_thread(listed, place)
    deadline.lap("record")
    worker.dumped[order.action] = Dumped(record, manifest, staged, tree.living)
    return Outcome(record=record, ranks=worker.ranks)


async def _stop(worker: Worker, deadline: Deadline) -> Tree:
    tree = await worker.drivers.process.stop(worker.root_pid, deadline_s=deadline.left_s)
    worker.begin_hold()
    worker.state = "stopped"
    deadline.lap("stop")
    if await worker.drivers.process.settle(tree):
        deadline.lap("settle")
    return tree


def _as_criu_saw(worker: Worker, files: tuple[OpenFile, ...], place: Path) -> tuple[OpenFile, ...]:
    """With the sizes that CRIU saw, which a restore insists on; it looked after the cut."""
    named = worker.drivers.images.files(place / IMAGES)
    sizes = {file.path: file.size_bytes for file in named if file.size_bytes >= 0}
    return worker.drivers.files.settle(files, place / FILES, sizes)


async def _require_no_device(worker: Worker, tree: Tree) -> None:
    """What is in a device is not in the images: it must have been saved before, and closed."""
    if holders := await asyncio.to_thread(worker.drivers.cuda.holders, tree):
        raise Refused(
            f"processes {list(holders)} have a GPU open, and device memory was not saved",
            where=worker.where,
            advice="they began to use it after the checkpoint was asked for; try again",
        )


def _require_parked(worker: Worker, tree: Tree) -> None:
    moving = [rank for rank in worker.require_page().ranks(tree) if not rank.parked]
    if moving:
        raise Refused(
            f"rank {moving[0].rank} is not parked (boundary {moving[0].boundary})",
            where=worker.where,
        )


async def _require_whole(
    worker: Worker, tree: Tree, facts: ImageFacts, stats: DumpStats, deadline: Deadline
) -> None:
    """What was stopped is what is in the images, and it is what still stands there stopped."""
    now = await _settled(worker, min(SETTLE_S_MAX, deadline.left_s))
    _require_living(worker, tree, now)
    missing = sorted(set(tree.pids) - set(facts.pids))
    if missing or facts.root_pid != worker.root_pid:
        raise DriverError(
            f"the images lack processes {missing} of the worker"
            if missing
            else f"the images are of process {facts.root_pid}, not of {worker.root_pid}",
            where=worker.where,
        )
    await asyncio.to_thread(_require_pages, worker, tree, stats)
    before = {(process.pid, process.start_ticks) for process in tree.processes}
    changed = before ^ {(process.pid, process.start_ticks) for process in now.processes}
    moving = [process.pid for process in now.processes if process.state not in AT_REST]
    if changed or moving:
        raise DriverError(
            "the worker changed while it was dumped",
            where=worker.where,
            details=(f"came or went: {sorted(changed)}", f"not stopped: {moving}"),
        )


def _require_pages(worker: Worker, tree: Tree, stats: DumpStats) -> None:
    """Images without what came out of the devices would restore, and be a lie.

    What came out is memory of the processes' own, like the rest of it, and has to be in the images
    beside that rest; shared memory and files may be there too, or not. Reads /proc.
    """
    if stats.pages_written <= 0:
        raise DriverError("criu wrote no page of memory", where=worker.where)
    written = stats.pages_written * PAGE_BYTES
    if written < worker.gpu_bytes:
        raise DriverError(
            f"criu wrote {written} bytes, less than the {worker.gpu_bytes} of device memory",
            where=worker.where,
            advice=LOOK_AT_LOGS,
        )
    if not worker.gpus:
        return
    own = sum(memory_of(pid).own_bytes for pid in tree.pids)
    if written < own * (1 - UNCOUNTED) - UNCOUNTED_BYTES * len(tree.pids):
        raise DriverError(
            f"criu wrote {written} bytes of processes that have {own} of their own, what was in "
            "their GPUs included",
            where=worker.where,
            advice=LOOK_AT_LOGS,
        )


def _require_living(worker: Worker, before: Tree, now: Tree, details: tuple[str, ...] = ()) -> None:
    """Raise naming the processes that were stopped and have ended since: the cause of the rest."""
    gone = before.living - now.living
    ended = [p for p in before.processes if (p.pid, p.start_ticks) in gone]
    if not ended:
        return
    names = [f"rank {p.rank} (pid {p.pid})" if p.rank >= 0 else f"pid {p.pid}" for p in ended]
    rank = next((process.rank for process in ended if process.rank >= 0), None)
    raise DriverError(
        f"{', '.join(names)} ended while the worker was dumped",
        where=replace(worker.where, rank=rank),
        advice="somebody killed it, or the kernel for want of memory (dmesg tells)",
        details=(*(f"{p.pid}: {' '.join(p.argv)[:200]}" for p in ended), *details),
    )


async def _settled(worker: Worker, deadline_s: float) -> Tree:
    """The tree as soon as every task is stopped again, or as it is at the deadline.

    When CRIU detaches, a stopped task is woken to stop again: for a moment, on a busy machine a
    long one, /proc calls it running though it executes nothing of its own (ptrace(2)).
    """
    until = time.monotonic() + deadline_s
    while True:
        now = worker.tree()
        if all(process.state in AT_REST for process in now.processes) or time.monotonic() >= until:
            return now
        await asyncio.sleep(SETTLE_POLL_S)


async def _record(
    worker: Worker, tree: Tree, sockets: Sockets, stats: DumpStats, facts: ImageFacts
) -> WorkerRecord:
    node = worker.drivers.facts.current()
    programs = await worker.programs if worker.programs is not None else ()
    worker.programs = None
    gpu_pids = tuple(process.pid for process in worker.gpus)
    seen = worker.gpus_seen
    if gpu_pids and seen is None and worker.drivers.gpus is not None:
        seen = worker.drivers.gpus.before(worker.claimed_s)
    return WorkerRecord(
        job=worker.job,
        worker=worker.worker,
        node=node.node,
        address=node.address,
        root_pid=worker.root_pid,
        highest_pid=facts.highest_pid,
        ranks=worker.ranks,
        image_bytes=stats.image_bytes,
        memory_bytes=sum(process.rss_bytes for process in tree.processes),
        manifest="",
        manifest_digest="",
        connections=sockets.leaving,
        programs=programs,
        architecture=node.architecture,
        cpu_flags=node.cpu_flags,
        kernel=node.kernel,
        criu_version=node.criu_version,
        store=node.store,
        held_ms=0,
        dump_ms=stats.took_ms,
        command=worker.command,
        gpu_pids=gpu_pids,
        gpu_bytes=worker.gpu_bytes,
        nccl=worker.nccl,
        named=named_in(worker.launched.env) if worker.launched is not None else (),
        **gpu_facts(seen, gpu_pids, programs, engine=worker.drivers.cuda.engine),
    )


def _manifest(worker: Worker, order: Order, open_files: tuple[OpenFile, ...]) -> Manifest:
    page, slots = worker.page.snapshot() if worker.page is not None else ({}, ())
    return Manifest(
        version=manifests.VERSION,
        job=worker.job,
        worker=worker.worker,
        action=order.action,
        incarnation=worker.incarnation,
        root_pid=worker.root_pid,
        files=(),
        open_files=open_files,
        page=page,
        slots=slots,
        workers=worker.workers,
        command=worker.command,
        run_directory=str(worker.directory),
        launch=worker.launched,
        keeping=worker.keeping,
    )
