"""Start times across time namespaces.

CRIU restores a tree into a time namespace of its own, so that its monotonic clocks go on where they
stopped. The kernel shifts a process's start time (field 22 of /proc/PID/stat) by the *reader's*
offset of CLOCK_BOOTTIME, so shim and rank read different numbers for one process. See
time_namespaces(7).
"""

from __future__ import annotations

import os
from pathlib import Path

from worker_shim.hook.slot import start_ticks

TICKS_PER_S = os.sysconf("SC_CLK_TCK")
NS_PER_S = 1_000_000_000


def start_seen_by(pid: int) -> int:
    """The start time of `pid` as it reads it itself, in clock ticks; 0 when there is no process."""
    ticks = start_ticks(pid)
    if not ticks:
        return 0
    shift_ns = boottime_offset_ns(pid) - boottime_offset_ns("self")
    return ticks + shift_ns * TICKS_PER_S // NS_PER_S


def boottime_offset_ns(pid: int | str) -> int:
    """Offset of CLOCK_BOOTTIME in the process's time namespace; 0 where there are none."""
    try:
        lines = Path(f"/proc/{pid}/timens_offsets").read_text().splitlines()
    except OSError:
        return 0
    for line in lines:
        clock, seconds, nanoseconds = line.split()
        if clock in ("boottime", "7"):
            return int(seconds) * NS_PER_S + int(nanoseconds)
    return 0
