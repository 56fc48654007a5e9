"""A set of files on their way: several threads, one deadline, one way to stop them all."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from typing import TypeVar

from coordinator.core.errors import DriverError
from worker_shim.images.copying import CopyStopped

Progress = Callable[[int, int], None]
Begin = Callable[[], None]
T = TypeVar("T")


@dataclass
class Transfer:
    """What the threads of one put or fetch share."""

    total_bytes: int
    progress: Progress
    stop: threading.Event = field(default_factory=threading.Event)
    done_bytes: int = 0
    lock: threading.Lock = field(default_factory=threading.Lock)

    def advance(self, count: int) -> None:
        """Count bytes and tell whoever watches; called from the copying threads."""
        with self.lock:
            self.done_bytes += count
            self.progress(self.done_bytes, self.total_bytes)

    def finish(self) -> None:
        """All is done, also what needed no copying."""
        self.advance(self.total_bytes - self.done_bytes)


async def bounded(work: Callable[[], T], job: Transfer, deadline_s: float, doing: str) -> T:
    """Run in a thread; at the deadline or a cancellation tell it to stop and wait until it has.

    The thread looks at `stop` between chunks, so the wait is one chunk long. It is a thread of its
    own: workers of one attempt wait for each other, and nothing else of a shim may wait for them.
    """
    pool = ThreadPoolExecutor(1, thread_name_prefix="store")
    thread = asyncio.get_running_loop().run_in_executor(pool, work)
    pool.shutdown(wait=False)
    try:
        await asyncio.wait({thread}, timeout=deadline_s)
    finally:
        job.stop.set()
        await asyncio.wait({thread})
        thread.exception()  # seen: when this is a cancellation, nobody else will look
    try:
        return thread.result()  # also when it was done at the very last moment: look, then decide
    except CopyStopped:
        raise DriverError(
            f"{doing} did not end within {deadline_s:.1f} s",
            advice="a slower store needs a longer persist or fetch deadline",
            details=(f"{job.done_bytes} of {job.total_bytes} bytes were copied",),
        ) from None


def run_all(
    works: Sequence[Callable[[], T]], job: Transfer, *, threads: int, begin: Begin
) -> list[T]:
    """Do all in a few threads, each of which calls `begin` first; the first error stops all."""
    with ThreadPoolExecutor(threads, thread_name_prefix="images", initializer=begin) as pool:
        futures = [pool.submit(work) for work in works]
        done, _ = wait(futures, return_when=FIRST_EXCEPTION)
        failed = [error for future in done if (error := future.exception()) is not None]
        if failed:
            job.stop.set()
            real = [error for error in failed if not isinstance(error, CopyStopped)]
            raise (real or failed)[0]
    return [future.result() for future in futures]
