"""FETCH, CLEAR, RESTORE and RELEASE of a worker whose command is started from scratch.

Nothing is put back. FETCH brings what it was started with, CLEAR ends the old worker, RESTORE makes
ready, and RELEASE, when every worker of the job is ready and that is recorded, starts the command.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

from coordinator.core.errors import DriverError
from coordinator.core.model import WorkerRecord
from worker_shim.agent.launched import moved, require_startable
from worker_shim.agent.options import WorkerSpec
from worker_shim.agent.order import Deadline, Order, Outcome
from worker_shim.agent.worker import Worker
from worker_shim.criu.port import ImageFacts
from worker_shim.files.keeping import Keeping
from worker_shim.images.port import Launch, Manifest
from worker_shim.nccl.launching import environment as launch_environment
from worker_shim.network.port import Sockets

NOTHING = Sockets((), ())
NOBODY = ImageFacts(0, (), ())


async def fetch(worker: Worker, record: WorkerRecord, deadline: Deadline) -> tuple[Manifest, str]:
    """Bring the manifest and see that its command could start here; return it with a note.

    Nothing is touched. Raises DriverError for a snapshot that does not say how its worker was
    started, and where program, working directory or the NCCL checkpoint shim that its mode needs
    are missing.
    """
    manifest = await worker.drivers.store.manifest(
        record.manifest, record.manifest_digest, deadline_s=deadline.left_s
    )
    deadline.lap("manifest")
    if manifest.launch is None:
        raise DriverError(
            "the snapshot does not say how its worker was started",
            where=worker.where,
            advice="start the job by hand: `allstop shim run` on each node",
        )
    await asyncio.to_thread(_require_startable, worker, manifest.launch)
    return manifest, "what it was started with"


def _require_startable(worker: Worker, launch: Launch) -> None:
    require_startable(launch, worker.where)
    try:
        launch_environment(launch.env, worker.directory, mode=launch.nccl, library=_shim(launch))
    except DriverError as error:
        raise error.at(job=worker.job, worker=worker.worker, node=worker.where.node) from None


def _shim(launch: Launch) -> Path | None:
    return Path(launch.nccl_shim) if launch.nccl_shim else None


async def clear(worker: Worker, order: Order, deadline: Deadline) -> Outcome:
    """End the old worker; whatever it wrote stays as it is. A crash leaves the worker killed."""
    drivers = worker.drivers
    worker.restored_by = order.action
    old = drivers.network.sockets(worker.tree()) if worker.root_pid else NOTHING
    await worker.kill(deadline_s=deadline.left_s)
    deadline.lap("kill")
    await drivers.network.unlock(worker.name, deadline_s=deadline.left_s)
    cleared = await drivers.network.clear(
        old.established, deadline_s=deadline.left_s, ports=old.listening
    )
    deadline.lap("clear")
    worker.action, worker.held_since = order.action, None
    return Outcome(note=f"{cleared} sockets destroyed")


async def restore(
    worker: Worker, order: Order, launch: Launch, keeping: Keeping, deadline: Deadline
) -> Launch:
    """Make ready to start, and have the worker look like one that is back and held."""
    ready = moved(launch, {move.old: move.new for move in order.addresses})
    await asyncio.to_thread(require_startable, ready, worker.where)
    worker.take_directory()
    if worker.page is not None:
        worker.page.close()
    worker.page, worker.ranks, worker.root_pid = None, (), 0
    worker.command = ready.argv
    worker.keeping = keeping
    worker.workers = order.workers or worker.workers
    worker.state, worker.action = "restored", order.action
    worker.incarnation = order.incarnation
    deadline.lap("ready")
    return ready


async def release(worker: Worker, launch: Launch, deadline: Deadline) -> Outcome:
    """Start the command, with a control page of its own, in the incarnation of this restore.

    Raises DriverError with nothing left running when it cannot be started.
    """
    incarnation = worker.incarnation
    spec = WorkerSpec(
        job=worker.job,
        worker=worker.worker,
        workers=worker.workers,
        argv=launch.argv,
        env=launch.env,
        cwd=Path(launch.cwd),
        slots=launch.slots,
        nccl=launch.nccl,
        nccl_shim=_shim(launch),
        keeping=worker.keeping,
    )
    notes = await worker.launch(spec)
    worker.admit(incarnation)
    deadline.lap("launch")
    held_ms = worker.end_hold()
    worker.restoration = None
    return Outcome(held_ms=held_ms, root_pid=worker.root_pid, note="; ".join(notes))
