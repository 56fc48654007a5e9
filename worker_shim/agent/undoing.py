"""RESUME, UNDO and the dead-man timer: letting a worker go.

UNDO and the timer share one procedure, and it never trusts memory: it looks whether the network
lock is there, whether tasks are stopped, whether the hold flag is up, acts on what it sees, and
looks again. A worker that still is not free then is faulted.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from contextlib import suppress
from dataclasses import dataclass
from typing import TypeVar

import structlog

from coordinator.core.errors import AllstopError, DeadlinePassed, DriverError
from coordinator.core.failures import listed
from worker_shim.agent import communicators, gpus, rebuilding
from worker_shim.agent.order import Deadline, Order, Outcome
from worker_shim.agent.ports import Page
from worker_shim.agent.worker import Worker

log = structlog.get_logger(__name__)

COPIES_S = 5.0  # for copies to stop when their worker is being put out; then without them

T = TypeVar("T")


@dataclass(frozen=True)
class Situation:
    """What was seen of a worker."""

    locked: bool  # its network lock is there
    stopped: tuple[int, ...]  # pids of its tree that are stopped
    holding: bool  # the hold flag is up
    there: bool  # it has processes
    devices: tuple[str, ...] = ()  # processes that are off their devices, and how

    @property
    def free(self) -> bool:
        """Nothing holds it."""
        return not (self.locked or self.stopped or self.holding or self.devices)

    def __str__(self) -> str:
        seen = (
            "the network lock is on" if self.locked else "",
            f"processes {list(self.stopped)} are stopped" if self.stopped else "",
            "the hold flag is up" if self.holding else "",
            f"of its GPU processes {listed(list(self.devices))}" if self.devices else "",
        )
        return ", ".join(text for text in seen if text) or "nothing holds it"


async def look(worker: Worker, deadline: Deadline | None = None) -> Situation:
    """See how the worker stands now; its devices too where there is time for the driver to answer.

    Without that time it does not wait for a driver.
    """
    tree = worker.tree()
    return Situation(
        locked=await worker.drivers.network.locked(worker.name),
        stopped=tuple(each.pid for each in tree.processes if each.state in ("T", "t")),
        holding=worker.page is not None and worker.page.hold != 0,
        there=bool(tree.processes),
        devices=await gpus.seen(worker, deadline) if deadline is not None else (),
    )


async def resume(worker: Worker, order: Order, deadline: Deadline) -> Outcome:
    """Network unlock, SIGCONT, release: in this order, so that no rank moves before it can talk."""
    worker.require_claimed(order.action)
    dumped, tree = worker.dumped.get(order.action), worker.require_tree()
    if dumped is not None and dumped.outlived_by(tree):
        dumped.outlived = True
    deadline.lap("check")
    await worker.drivers.network.unlock(worker.name, deadline_s=deadline.left_s)
    deadline.lap("unlock")
    await communicators.prepare_release(worker, order.action)
    await worker.drivers.process.go_on(worker.root_pid)
    deadline.lap("go on")
    if worker.gpus:
        with suppress(DeadlinePassed):  # it goes on all the same
            await gpus.lower_first(worker, order, at_most_s=deadline.left_s / 2)
        await gpus.put_back(worker, deadline)
        deadline.lap("devices")
    if worker.page is not None:
        worker.page.release()
    held_ms = worker.end_hold()
    worker.state = "running" if worker.alive else worker.state
    await rebuilding.rebuilt(worker, deadline)
    return Outcome(held_ms=held_ms)


async def undo(worker: Worker, order: Order, deadline: Deadline) -> Outcome:
    """Put the worker back to running (or, of a restore, away), and drop what was made of it."""
    worker.undone.add(order.action)
    if order.kill:
        return await put_away(worker, order.action, deadline)
    return await put_back(
        worker, order.action, deadline, delete=True, keep=order.keep, tear_down=order.tear_down
    )


async def put_back(
    worker: Worker,
    action: str,
    deadline: Deadline,
    *,
    delete: bool,
    keep: bool = False,
    tear_down: bool = False,
) -> Outcome:
    """The worker runs as before; with `delete` nothing staged or stored of the action is left.

    With `keep` only what is stored is left, since it may be a snapshot's. With `tear_down` parked
    ranks destroy their communicators first, as those of other workers do. Raises DriverError, and
    the worker is faulted, when it still is held afterwards.
    """
    if worker.action in ("", action):
        await _let_go(worker, action, deadline, tear_down=tear_down)
    held_ms = worker.end_hold() if worker.action == action else worker.last_held_ms
    if delete:
        await _delete(worker, action, deadline, stored=not keep)
    return Outcome(held_ms=held_ms, note=worker.state)


async def _let_go(worker: Worker, action: str, deadline: Deadline, *, tear_down: bool) -> None:
    trouble: list[str] = []
    drivers = worker.drivers
    # Devices come last: a driver that hangs, as for a process that stands still, must not keep the
    # rest from being let go. None: not seen, so everything may hold it.
    seen = await _try(look(worker), trouble)
    if seen is None or seen.locked:
        unlocking = drivers.network.unlock(worker.name, deadline_s=deadline.left_s)
        await _try(unlocking, trouble)
    if worker.root_pid and (seen is None or seen.stopped):
        await _try(drivers.process.go_on(worker.root_pid), trouble)
    back = True
    if worker.gpus:
        back = await _try(_devices_back(worker, deadline), trouble) is not None
    back = back and await _try(_ready(worker, action, tear_down), trouble) is not None
    if worker.page is not None and (seen is None or seen.holding) and back:
        await _try(_lower(worker.page), trouble)  # a rank that lacks something is left parked
    free = seen is not None and seen.free and back
    after = seen if free else await _try(look(worker, deadline), trouble)
    if after is None or not after.free:
        worker.state = "faulted"
        raise DriverError(
            f"the worker cannot be let go: {after or 'how it stands cannot be seen'}",
            where=worker.where,
            advice="the job goes back to its last snapshot; restore it",
            definite=False,
            details=tuple(trouble),
        )
    if after.there and worker.state in ("held", "stopped", "faulted"):
        worker.state = "running"


async def put_away(worker: Worker, action: str, deadline: Deadline) -> Outcome:
    """Kill what this restore brought back, and remove its network lock and its images.

    A worker of the old incarnation that the restore has not touched yet is left alone. The images
    go even where the rest fails: nobody looks for them again.
    """
    try:
        if worker.restored_by == action:
            await worker.kill(deadline_s=deadline.left_s)
            await worker.drivers.network.unlock(worker.name, deadline_s=deadline.left_s)
            worker.state, worker.restored_by = "", ""
            worker.end_hold()
            worker.leave_directory()
    except BaseException:
        drop = worker.drivers.staging.drop
        await asyncio.to_thread(drop, worker.job, worker.worker, action)
        raise
    if worker.restoration is not None and worker.restoration.action == action:
        worker.restoration = None
    await _delete(worker, action, deadline, stored=False)
    return Outcome(note="what was restored is gone")


async def _delete(worker: Worker, action: str, deadline: Deadline, *, stored: bool) -> None:
    """Nothing of the action stays in staging, nor, with `stored`, in the store.

    The store comes last, since it may hang: by then the worker runs and its node is clean. What is
    stored is looked up by name: an earlier shim of this node may have put it there and died.
    """
    worker.dumped.pop(action, None)
    drop, store = worker.drivers.staging.drop, worker.drivers.store
    try:
        await worker.stop_copies(action, deadline_s=deadline.left_s)
    finally:
        await asyncio.to_thread(drop, worker.job, worker.worker, action)
    if not stored:
        return
    worker.published.discard(action)
    place = store.place(worker.job, action, worker.worker)
    left_s = deadline.left_s
    deleting = asyncio.ensure_future(store.delete(place))
    await asyncio.wait({deleting}, timeout=left_s)
    if not deleting.done():
        deleting.add_done_callback(_see)
        raise DriverError(
            f"the image store has not removed {place} within {left_s:.1f} s",
            where=worker.where,
            advice="is the shared file system mounted? It is removed as soon as it answers",
            definite=False,
        )
    deleting.result()


def _see(deleting: asyncio.Future[None]) -> None:
    """A removal that nobody waits for any more has ended."""
    if not deleting.cancelled() and (error := deleting.exception()) is not None:
        log.warning("something is left in the image store", why=str(error))


async def _devices_back(worker: Worker, deadline: Deadline) -> bool:
    await gpus.put_back(worker, deadline)
    return True


async def _ready(worker: Worker, action: str, tear_down: bool) -> bool:
    await communicators.begin_all(worker, anew=tear_down)
    await communicators.prepare_release(worker, action)
    return True


async def _lower(page: Page) -> None:
    page.release()


async def _try(step: Awaitable[T], trouble: list[str]) -> T | None:
    """Go on to the next step whatever this one says; the second look decides."""
    try:
        return await step
    except AllstopError as error:
        trouble.extend((str(error), *error.details))
    except Exception as error:  # a fork that failed must not leave the other steps undone
        trouble.append(f"{type(error).__name__}: {error}")
    return None


async def put_out(worker: Worker, deadline: Deadline) -> None:
    """Kill the worker whatever it is doing, unlock its network, and forget it.

    For a worker that was fenced and for the shim's own end; raises DriverError when it lives on.
    """
    await worker.kill(deadline_s=deadline.left_s)
    await worker.drivers.network.unlock(worker.name, deadline_s=deadline.left_s)
    worker.end_hold()
    copying = worker.tell_copies_to_stop()
    if copying:
        await asyncio.wait(copying, timeout=min(COPIES_S, deadline.left_s))
    for action in (*worker.dumped, *([worker.restoration.action] if worker.restoration else ())):
        await asyncio.to_thread(worker.drivers.staging.drop, worker.job, worker.worker, action)
    await worker.dropped(deadline_s=deadline.left_s)
    await asyncio.to_thread(worker.drivers.staging.drop_kept, worker.job, worker.worker)
    worker.dumped.clear()
    worker.restoration = None
    worker.leave_directory()
    worker.state = ""
