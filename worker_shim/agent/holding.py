"""HOLD and PARK: from a running worker to ranks that wait at one boundary."""

from __future__ import annotations

import asyncio
from dataclasses import replace

from coordinator.core.errors import AllstopError, DriverError, NotReady
from coordinator.core.model import Finding, Severity
from worker_shim.agent import putting_back, rebuilding
from worker_shim.agent.order import Deadline, Order, Outcome
from worker_shim.agent.programs import programs_of
from worker_shim.agent.worker import Worker
from worker_shim.compatibility.node import STAND_STILL_S
from worker_shim.facts import memory
from worker_shim.images.staging import in_memory
from worker_shim.process.port import Tree

NO_ENGINE = "install driver 570 or newer, and `pip install allstop[gpu]`"
ROOM_FACTOR = 1.1  # images hold what is resident, some of it twice (pages shared by forks)
ROOM_EXTRA_BYTES = 64 << 20


def room_needed(tree: Tree) -> int:
    """Bytes that the images of this tree may take."""
    resident = sum(process.rss_bytes for process in tree.processes)
    return int(resident * ROOM_FACTOR) + ROOM_EXTRA_BYTES


async def look_over(worker: Worker, tree: Tree) -> tuple[Finding, ...]:
    """Everything that speaks against saving this worker now, in its tree or on its node."""
    findings = await asyncio.to_thread(_look_at_tree, worker, tree)
    lacking = rebuilding.findings(worker)
    return (*await _look_for_programs(worker), *lacking, *findings)


async def _look_for_programs(worker: Worker) -> tuple[Finding, ...]:
    """A program that the dump needs and that is missing must not be missed by a stopped tree."""
    found = []
    try:
        await worker.drivers.images.version()
    except AllstopError as error:
        text = f"the node has no usable CRIU: {error.what}; {error.advice}"
        found.append(Finding(Severity.REFUSE, "criu_missing", text))
    try:
        await worker.drivers.network.locked(worker.name)
    except AllstopError as error:
        text = f"the node cannot lock its network: {error.what}; {error.advice}"
        found.append(Finding(Severity.REFUSE, "network_lock", text))
    return tuple(found)


def _look_at_tree(worker: Worker, tree: Tree) -> tuple[Finding, ...]:
    """Reads /proc, so it is for a thread."""
    findings = list(worker.drivers.process.preflight(tree))
    known = {(finding.code, finding.pid) for finding in findings}
    cuda = worker.drivers.cuda
    holders = cuda.holders(tree)
    worker.gpu = worker.gpu or bool(holders)
    for pid in holders:
        if not cuda.engine and ("gpu", pid) not in known:
            text = f"process {pid} uses a GPU, which cannot be saved ({cuda.trouble}); {NO_ENGINE}"
            findings.append(Finding(Severity.REFUSE, "gpu", text, pid=pid))
    file_bytes, of_files = _look_at_files(worker, tree)
    findings += of_files
    worker.room_bytes = room_needed(tree) + file_bytes
    need = worker.room_bytes + sum(each.room_bytes for each in worker.beside() if each.alive)
    if holders:
        need += device_bytes(worker)
        findings += _host_memory(worker, need)
    rooms = (
        ("staging_space", "staging", worker.drivers.staging.free_bytes()),
        ("store_space", "the image store", worker.drivers.store.free_bytes()),
    )
    for code, place, free in rooms:
        if free < need:
            beside = len([each for each in worker.beside() if each.alive])
            who = f"the job's {beside + 1} workers here need" if beside else "the worker needs"
            text = f"{place} has {free >> 20} MiB free and {who} {need >> 20} MiB; make room there"
            findings.append(Finding(Severity.REFUSE, code, text))
    return tuple(findings)


def _look_at_files(worker: Worker, tree: Tree) -> tuple[int, list[Finding]]:
    """Bytes that are kept of files, and what should be known of them."""
    try:
        expected = worker.drivers.files.expect(tree, worker.keeping)
    except DriverError as error:
        text = f"{error.what}; {error.advice}"
        return 0, [Finding(Severity.REFUSE, "files", text)]
    return expected.bytes, putting_back.findings(expected)


def device_bytes(worker: Worker) -> int:
    """What the node's GPUs hold, which is at least what the worker has there."""
    gpus = worker.drivers.facts.current().gpus
    return sum(gpu.memory_bytes - gpu.memory_free_bytes for gpu in gpus)


def _host_memory(worker: Worker, images_bytes: int) -> list[Finding]:
    """Device memory becomes memory of the processes, for all ranks of the node at once.

    Where staging is in memory their images take as much again, and the rest of them too.
    """
    facts = worker.drivers.facts.current()
    if not facts.gpus:
        why = facts.gpu_trouble or "NVML has not answered yet"
        text = f"how much the GPUs hold is not known ({why}), so nobody looked whether it fits here"
        return [Finding(Severity.WARN, "gpu_memory_unknown", text)]
    need, (_, free) = device_bytes(worker), memory()
    text = (
        f"its GPUs hold {need >> 20} MiB, which become memory of the ranks when they are saved; "
        "use less, or add swap"
    )
    if in_memory(worker.drivers.staging.root):
        need += images_bytes
        text = (
            f"its images, which are staged in memory too, need {images_bytes >> 20} MiB and {text}"
        )
    if need <= free:
        return []
    text = f"the node has {free >> 20} MiB of memory free; {text}"
    return [Finding(Severity.REFUSE, "host_memory", text)]


async def check(worker: Worker, tree: Tree) -> tuple[Finding, ...]:
    """The preflight again; raises NotReady with every finding that refuses a checkpoint."""
    findings = await look_over(worker, tree)
    worker.findings = findings
    refused = [finding for finding in findings if finding.severity is Severity.REFUSE]
    if refused:
        raise NotReady(
            f"the worker cannot be saved as it is: {refused[0].text}",
            where=replace(worker.where, rank=refused[0].rank if refused[0].rank >= 0 else None),
            advice="remove what the preflight found, then try again",
            details=tuple(f"{finding.code}: {finding.text}" for finding in refused),
        )
    return findings


def begin_programs(worker: Worker, tree: Tree) -> None:
    """Look up the program files beside the other work; the dump needs the answer at its end."""
    if worker.programs is not None:
        worker.programs.cancel()
    worker.programs = asyncio.ensure_future(asyncio.to_thread(programs_of, tree))


async def hold(worker: Worker, order: Order, deadline: Deadline) -> Outcome:
    """Raise the hold flag and report the boundary that each rank had then published.

    Nothing is raised when the preflight refuses. A crash after it leaves the flag up: the ranks
    then wait at their next boundary until the worker is killed with its shim.
    """
    worker.claim(order.action)
    page = worker.require_page()
    tree = worker.require_tree()
    deadline.lap("look")
    worker.drivers.eyes.stand_still_s = order.stand_still_s or STAND_STILL_S
    findings = await check(worker, tree)
    deadline.lap("preflight")
    if not any(rank.boundary >= 0 for rank in page.ranks(tree)):
        raise NotReady(
            "no rank of this worker has loaded the hook",
            where=worker.where,
            advice="wait until training has begun; for a program without PyTorch use --cut freeze",
        )
    begin_programs(worker, tree)
    worker.generation = max(worker.generation, page.hold) + 1
    await page.raise_hold(worker.generation)
    deadline.lap("flag")
    worker.state = "held"
    worker.ranks = worker.held_ranks = page.ranks(tree)
    return Outcome(ranks=worker.ranks, findings=findings, gpu=worker.gpu)


async def park(worker: Worker, order: Order, deadline: Deadline) -> Outcome:
    """Let the ranks run on to the target and wait until every one of them is parked there."""
    worker.require_claimed(order.action)
    page = worker.require_page()
    page.set_target(order.target)
    tree = worker.require_tree()
    worker.ranks = await page.wait_parked(
        tree, known=worker.held_ranks, deadline_s=deadline.left_s, arrived=deadline.arrive
    )
    worker.begin_hold()
    return Outcome(ranks=worker.ranks)
