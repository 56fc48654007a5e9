"""A pid is only a number: the process behind it is looked at before and after each action."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence

from coordinator.core.errors import DriverError
from worker_shim.cuda.devices import has_device
from worker_shim.cuda.port import GpuProcess
from worker_shim.cuda.results import OPERATING_SYSTEM
from worker_shim.process.proc import read_stat

DYING_S = 1.0  # for a process that its driver has just killed to be seen as dead
DYING_POLL_S = 0.01


async def require_survived(process: GpuProcess, doing: str, code: int) -> None:
    """Raise DriverError where the process did not survive a call that gave this result.

    Some versions end the process instead of refusing (a lock of a multi-threaded one with
    610.57.04), and answer with an error of the operating system; its end takes a moment.
    """
    until = time.monotonic() + (DYING_S if code == OPERATING_SYSTEM else 0.0)
    while True:
        require_alive(process, doing, after=True)
        if time.monotonic() >= until:
            return
        await asyncio.sleep(DYING_POLL_S)


def is_there(process: GpuProcess) -> bool:
    """Whether it has not ended."""
    stat = read_stat(process.pid)
    return stat is not None and stat.start_ticks == process.start_ticks and stat.state not in "ZX"


def require_alive(process: GpuProcess, doing: str, *, after: bool = False) -> None:
    """Raise DriverError where the process has ended or its pid is another's.

    `after`: the driver was told already.
    """
    if is_there(process):
        return
    stat = read_stat(process.pid)
    ended = "has ended" if stat is None or stat.state in "ZX" else "is another process by now"
    raise DriverError(
        f"{doing}: process {process.pid} {ended}",
        advice="look at the end of the worker's output; restore the last snapshot",
        definite=not after,
    )


class Unclear:
    """Processes of which the driver did not say whether they have GPU state.

    One that has a device open is an error at once. Others are only where nobody has GPU state: most
    of a tree has nothing to do with CUDA, and versions differ in what they say of such.
    """

    def __init__(self, device_prefix: str) -> None:
        self._device_prefix = device_prefix
        self._errors: list[DriverError] = []

    def add(self, process: GpuProcess, error: DriverError) -> None:
        """What came instead of an answer; raises it where it cannot be passed over."""
        if not is_there(process):
            return
        if has_device(process.pid, self._device_prefix):
            raise error
        self._errors.append(error)

    def require_some(self, found: Sequence[GpuProcess]) -> None:
        """Raise the first of them where no process with GPU state was found."""
        if self._errors and not found:
            raise self._errors[0]
