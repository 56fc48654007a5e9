"""Several CRIUs of one node at once: as many as may run, and one alone where names would clash.

A file with a deleted name and another name still gets a name `link_remap.N` from CRIU, in its own
directory, numbered from 1 by every CRIU for itself: two at once meet in /dev/shm, where the
semaphores of Python's spawn are, and one of them fails (or, restoring, takes the other's file).
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncIterator, Iterable
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path

from coordinator.core.errors import DriverError

PROC = Path("/proc")
DELETED = " (deleted)"


def cores() -> int:
    """Those that this process may use; one CRIU keeps one of them busy."""
    return len(os.sched_getaffinity(0))


class Turns:
    """Who may run a CRIU now; first come, first served."""

    def __init__(self, at_once: int = 0) -> None:
        """`at_once` CRIUs may run; 0: one for each core."""
        self._places = asyncio.Semaphore(at_once or cores())
        self._links = asyncio.Lock()

    @asynccontextmanager
    async def turn(self, *, links: bool, until: float) -> AsyncIterator[float]:
        """Wait for a place; gives the seconds that are left until `until` (monotonic clock).

        With `links` nobody else who has link remaps runs meanwhile. Raises DriverError, definite,
        when the time has run out before it was one's turn.
        """
        began = time.monotonic()
        async with AsyncExitStack() as held:
            try:
                async with asyncio.timeout(max(0.0, until - began)):
                    if links:
                        await held.enter_async_context(self._links)
                    await held.enter_async_context(self._places)
            except TimeoutError:
                raise DriverError(
                    f"other CRIUs of this node left no time: {time.monotonic() - began:.1f} s",
                    advice="give the phase more time, or the shim a greater --criu-at-once",
                ) from None
            yield max(0.0, until - time.monotonic())


def has_links(pids: Iterable[int]) -> bool:
    """Whether a process has a file by a deleted name that has another name still."""
    return any(_is_linked(place) for pid in pids for place in _deleted(PROC / str(pid)))


def _deleted(process: Path) -> set[Path]:
    """Ways to every file that the process has by a name that is gone."""
    found = set()
    with suppress(FileNotFoundError, ProcessLookupError):
        for line in (process / "maps").read_text().splitlines():
            if line.endswith(DELETED):
                begin, _, end = line.split(maxsplit=1)[0].partition("-")
                found.add(process / "map_files" / f"{begin.lstrip('0')}-{end.lstrip('0')}")
        for descriptor in os.scandir(process / "fd"):
            with suppress(FileNotFoundError):
                if os.readlink(descriptor.path).endswith(DELETED):
                    found.add(Path(descriptor.path))
    return found


def _is_linked(place: Path) -> bool:
    with suppress(OSError):
        return place.stat().st_nlink > 0
    return False
