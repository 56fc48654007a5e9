"""FETCH, CLEAR, RESTORE, OPEN, RELEASE: a worker comes back from its images."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from coordinator.core.errors import AllstopError, BadRequest, DriverError, Refused
from coordinator.core.model import Endpoint, WorkerRecord
from worker_shim.agent import communicators, putting_back, rebuilding, starting
from worker_shim.agent.order import Deadline, Order, Outcome
from worker_shim.agent.worker import Worker
from worker_shim.criu.port import ImageFacts
from worker_shim.files.port import Put
from worker_shim.images.port import Launch, Manifest
from worker_shim.images.staging import IMAGES
from worker_shim.network.port import Sockets, moved

FETCH_ROOM_FACTOR = 1.05
PID_FREE_S_MAX = 5.0
PID_POLL_S = 0.01
ORPHAN_S = 0.25  # a child of this shim that has ended and is there after so long is nobody's

Progress = Callable[[Order, int, int], None]


@dataclass
class Restoration:
    """What a restore has brought to this node so far."""

    action: str
    record: WorkerRecord
    place: Path
    manifest: Manifest
    sockets: Sockets
    facts: ImageFacts
    connections: tuple[Endpoint, ...] = ()
    locked: Sockets | None = None  # what this restore has locked already
    start: Launch | None = None  # it is started from scratch, by this; see `starting`


def _record(order: Order) -> WorkerRecord:
    if order.record is None:
        raise BadRequest(f"an order to {order.phase} needs the worker's record")
    return order.record


def _restoration(worker: Worker, order: Order) -> Restoration:
    restoration = worker.restoration
    if restoration is None or restoration.action != order.action:
        raise Refused(f"{order.action} has fetched nothing here", where=worker.where)
    return restoration


async def fetch(worker: Worker, order: Order, deadline: Deadline, progress: Progress) -> Outcome:
    """Bring the images to this node and verify every byte; a worker that runs here is untouched."""
    record, drivers = _record(order), worker.drivers
    if order.cold:
        manifest, note = await starting.fetch(worker, record, deadline)
        _require_own(worker, manifest)
        nothing = (Path(), manifest, starting.NOTHING, starting.NOBODY)
        made = Restoration(order.action, record, *nothing, start=manifest.launch)
        worker.restoration = made
        return Outcome(note=note)
    need = int(record.image_bytes * FETCH_ROOM_FACTOR)
    await worker.dropped(deadline_s=deadline.left_s)
    place = drivers.staging.create(
        worker.job, worker.worker, order.action, need_bytes=need, using=_action_of(record)
    )
    deadline.lap("place")
    try:
        manifest = await drivers.store.fetch(
            record.manifest,
            record.manifest_digest,
            place,
            progress=lambda done, total: progress(order, done, total),
            deadline_s=deadline.left_s,
        )
    except DriverError:
        drivers.staging.drop(worker.job, worker.worker, _action_of(record))
        raise
    deadline.lap("images")
    _require_own(worker, manifest)
    # While the old incarnation is untouched: a file that cannot come back must not cost the job.
    await asyncio.to_thread(putting_back.check, worker, manifest, place)
    deadline.lap("files")
    facts = await asyncio.to_thread(drivers.images.facts, place / IMAGES)
    sockets = await asyncio.to_thread(drivers.images.sockets, place / IMAGES)
    worker.restoration = Restoration(order.action, record, place, manifest, sockets, facts)
    return Outcome(note=f"{len(manifest.files)} files")


def _action_of(record: WorkerRecord) -> str:
    """The attempt whose images these are; what is kept of it in staging is under its name."""
    _, _, rest = record.manifest.partition("/")
    return rest.partition("/")[0]


def _require_own(worker: Worker, manifest: Manifest) -> None:
    if (manifest.job, manifest.worker) != (worker.job, worker.worker):
        raise DriverError(
            f"the manifest is of worker {manifest.job}/{manifest.worker}", where=worker.where
        )


async def clear(worker: Worker, order: Order, deadline: Deadline) -> Outcome:
    """Remove the old incarnation from this node and make room for the new one.

    The network lock of the new one comes first: a killed process must not send a last word to a
    peer that is about to be restored. A crash half-way leaves the worker killed.
    """
    drivers = worker.drivers
    if order.record is None:
        await worker.kill(deadline_s=deadline.left_s)
        await drivers.network.unlock(worker.name, deadline_s=deadline.left_s)
        worker.end_hold()
        worker.state = ""
        return Outcome(note="the old worker is gone; none comes here")
    restoration = _restoration(worker, order)
    if restoration.start is not None:
        return await starting.clear(worker, order, deadline)
    restoration.connections = order.connections
    worker.restored_by = order.action
    deadline.lap("check")
    old = drivers.network.sockets(worker.tree()).established if worker.root_pid else ()
    # What has both ends here moves with the worker's own address; CLEAR brings no whole map.
    own = {order.record.address: drivers.facts.current().address}
    new = (*order.connections, *(moved(end, own) for end in restoration.sockets.inside))
    lock = Sockets(
        established=(*new, *old),
        listening=tuple(
            sorted({(_any(address), port) for address, port in restoration.sockets.listening})
        ),
    )
    deadline.lap("sockets")
    await drivers.network.lock(worker.name, lock, deadline_s=deadline.left_s)
    restoration.locked = lock
    deadline.lap("lock")
    await worker.kill(deadline_s=deadline.left_s)
    deadline.lap("kill")
    worker.action, worker.held_since = order.action, None
    ends = tuple(dict.fromkeys((*old, *new, *restoration.record.connections)))
    cleared = await drivers.network.clear(ends, deadline_s=deadline.left_s, ports=lock.listening)
    deadline.lap("clear")
    drivers.process.raise_pid_counter(restoration.facts.highest_pid)
    await _require_free_ids(worker, restoration.facts, deadline)
    deadline.lap("ids")
    return Outcome(note=f"{cleared} sockets destroyed")


def _any(address: str) -> str:
    """Where the port will listen is known only with the address map: lock it everywhere."""
    return "::" if ":" in address else "0.0.0.0"


def _covers(lock: Sockets | None, sockets: Sockets) -> bool:
    """Whether the lock that CLEAR made is enough; making it anew takes some 30 ms."""
    if lock is None:
        return False
    listening = {(_any(address), port) for address, port in sockets.listening}
    return set(sockets.established) <= set(lock.established) and listening <= set(lock.listening)


async def _require_free_ids(worker: Worker, facts: ImageFacts, deadline: Deadline) -> None:
    """CRIU needs every pid and thread id of the images; a reaped one takes a moment to go."""
    began = time.monotonic()
    until = began + min(PID_FREE_S_MAX, deadline.left_s)
    while taken := _in_use(facts.task_ids):
        if time.monotonic() > began + ORPHAN_S:
            worker.drivers.process.reap(taken)
        if time.monotonic() > until:
            raise DriverError(
                f"task ids {taken[:8]} of the images are in use on this node",
                where=worker.where,
                advice="end these processes, or use another node; a shim in its own pid namespace "
                "keeps these ids free",
                details=tuple(f"{each}: {_command_line(each)}" for each in taken[:8]),
            )
        await asyncio.sleep(PID_POLL_S)


def _in_use(task_ids: tuple[int, ...]) -> list[int]:
    return [each for each in task_ids if Path(f"/proc/{each}").exists()]


def _command_line(task: int) -> str:
    try:
        words = Path(f"/proc/{task}/cmdline").read_bytes().split(b"\0")
    except OSError:
        return "gone meanwhile"
    return b" ".join(words).decode(errors="replace").strip()[:200]


async def restore(worker: Worker, order: Order, deadline: Deadline) -> Outcome:
    """Roll files back, then bring the tree back, stopped and locked, as a child of this shim.

    What CRIU has forked when it fails is gone again; the worker is then not there.
    """
    restoration = _restoration(worker, order)
    if worker.restored_by != order.action:
        raise Refused(f"{order.action} has not cleared this node", where=worker.where)
    if restoration.start is not None:
        start = restoration.start
        restoration.start = await starting.restore(
            worker, order, start, restoration.manifest.keeping, deadline
        )
        return Outcome(note="ready to be started from scratch")
    manifest = restoration.manifest
    # Not in CLEAR: old workers on other nodes may write to a shared file until all are cleared.
    told = await asyncio.to_thread(putting_back.put_back, worker, manifest, restoration.place)
    deadline.lap("files")
    try:
        return await _restore_tree(worker, order, restoration, told, deadline)
    except AllstopError as error:
        error.details = (*error.details, *map(putting_back.sentence, told))
        raise


async def _restore_tree(
    worker: Worker,
    order: Order,
    restoration: Restoration,
    told: tuple[Put, ...],
    deadline: Deadline,
) -> Outcome:
    """The tree, once its files are what they were."""
    drivers, manifest, images = worker.drivers, restoration.manifest, restoration.place / IMAGES
    moves = {move.old: move.new for move in order.addresses}
    close = leaving(restoration.sockets, restoration.connections, moves)
    await asyncio.to_thread(drivers.images.move_addresses, images, moves, close=close)
    sockets = await asyncio.to_thread(drivers.images.sockets, images)
    deadline.lap("addresses")
    if not _covers(restoration.locked, sockets):
        await drivers.network.lock(worker.name, sockets, deadline_s=deadline.left_s)
    deadline.lap("lock")
    worker.directory = Path(manifest.run_directory)
    worker.log_began = {file.path: file.size_bytes for file in manifest.open_files}
    worker.take_directory()
    worker.command, worker.workers = manifest.command, order.workers or manifest.workers
    worker.launched, worker.keeping = manifest.launch, manifest.keeping
    if manifest.page:
        page = {**manifest.page, "incarnation": order.incarnation}
        worker.page = drivers.hook.renew(worker.directory, page, manifest.slots)
        worker.generation = max(worker.generation, page.get("hold", 0))
    deadline.lap("page")
    root_pid = await drivers.images.restore(images, deadline_s=deadline.left_s)
    deadline.lap("restore")
    worker.adopt(root_pid, order.incarnation)
    worker.state, worker.action = "restored", order.action
    worker.gpu = bool(restoration.record.gpu_pids)
    worker.begin_hold()
    tree = worker.tree()
    missing = sorted(set(restoration.facts.pids) - set(tree.pids))
    moving = [each.pid for each in tree.processes if each.state not in ("T", "t")]
    if missing or moving:
        raise DriverError(
            f"the restored tree is not what was saved: missing {missing}, running {moving}",
            where=worker.where,
        )
    if worker.page is not None:
        worker.page.refresh_starts()
        worker.ranks = worker.page.ranks(tree)
    deadline.lap("look")
    files, unnamed = putting_back.told(worker, told)
    return Outcome(
        root_pid=root_pid,
        ranks=worker.ranks,
        note=f"{len(close)} connections closed, {putting_back.counted(told)}",
        files=files,
        files_unnamed=unnamed,
    )


def leaving(
    sockets: Sockets, job: tuple[Endpoint, ...], moves: Mapping[str, str]
) -> tuple[Endpoint, ...]:
    """Connections that left the job: established at the cut, and neither the job's nor inside.

    `job` are the job's connections with addresses as they will be; those returned are as they were.
    """
    own = set(job)
    return tuple(end for end in sockets.leaving if moved(end, moves) not in own)


async def open_network(worker: Worker, order: Order, deadline: Deadline) -> Outcome:
    """Network unlock alone: every socket of the job is there again, and every rank still stopped.

    What TCP has left to do is done from here on; a worker that is given up is killed all the same.
    """
    worker.require_claimed(order.action)
    worker.require_tree()
    await worker.drivers.network.unlock(worker.name, deadline_s=deadline.left_s)
    deadline.lap("unlock")
    return Outcome(root_pid=worker.root_pid)


async def release(worker: Worker, order: Order, deadline: Deadline) -> Outcome:
    """SIGCONT, release: every worker of the job is back, so this one may run.

    The network is open by OPEN, but where a new leader goes on with the release.
    """
    worker.require_claimed(order.action)
    restoration = _restoration(worker, order)
    if restoration.start is not None:
        return await starting.release(worker, restoration.start, deadline)
    worker.require_tree()
    deadline.lap("check")
    await worker.drivers.network.unlock(worker.name, deadline_s=deadline.left_s)
    deadline.lap("unlock")
    await communicators.prepare_release(worker, order.action)
    await worker.drivers.process.go_on(worker.root_pid)
    if worker.page is not None:
        worker.page.release()
    held_ms = worker.end_hold()
    deadline.lap("go on")
    worker.state = "running" if worker.alive else worker.state
    worker.stopped = worker.stays = False  # that was the old one
    worker.restoration = None
    worker.drop_later(order.action)
    await rebuilding.rebuilt(worker, deadline)
    return Outcome(held_ms=held_ms, root_pid=worker.root_pid)
