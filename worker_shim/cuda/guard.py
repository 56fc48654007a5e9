"""A pid is only a number: the process behind it is looked at before and after each action."""

from __future__ import annotations

from coordinator.core.errors import DriverError
from worker_shim.cuda.port import GpuProcess
from worker_shim.process.proc import read_stat


def require_alive(process: GpuProcess, doing: str, *, after: bool = False) -> None:
    """Raise DriverError where the process has ended or its pid is another's.

    `after`: the driver was told already. Some versions end the process instead of refusing (a lock
    of a multi-threaded one with 610.57.04), and answer with an error of the operating system.
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
