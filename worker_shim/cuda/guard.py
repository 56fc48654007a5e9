"""A pid is only a number: the process behind it is looked at before and after each action."""

from __future__ import annotations

import asyncio
import time

from coordinator.core.errors import DriverError
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


def require_alive(process: GpuProcess, doing: str, *, after: bool = False) -> None:
    """Raise DriverError where the process has ended or its pid is another's.

    `after`: the driver was told already.
    """
    stat = read_stat(process.pid)
    if stat is not None and stat.start_ticks == process.start_ticks and stat.state not in "ZX":
        return
    ended = "has ended" if stat is None or stat.state in "ZX" else "is another process by now"
    raise DriverError(
        f"{doing}: process {process.pid} {ended}",
        advice="look at the end of the worker's output; restore the last snapshot",
        definite=not after,
    )
