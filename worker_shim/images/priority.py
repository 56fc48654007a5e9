"""How urgent copying is beside the job: what the job waits for goes first, the rest gives way.

Two numbers count. Each thread has a nice value of its own, which is weighed within a control group;
where the kernel groups processes by session (sched_autogroup, sched(7)), it is weighed only within
the session, and the session has a nice value of its own.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import platform
import re
import threading
from collections.abc import Iterator
from pathlib import Path

LATER_NICE = 10  # a tenth of a core at worst, so that a copy on a busy node still ends
FIRST_NICE = -10
AUTOGROUP = Path("/proc/self/autogroup")
# <asm/unistd.h> and ioprio_set(2): class 2 is best effort, 7 its lowest level.
_IOPRIO_SET = {"x86_64": 251, "aarch64": 30}
_WHO_PROCESS, _BEST_EFFORT_LAST = 1, (2 << 13) | 7

_first = threading.Lock()
_first_count = 0
_session_nice = 0  # before anybody went first


def yield_to_others() -> None:
    """Make the calling thread give way to the job, on the processor and on the disk."""
    thread = threading.get_native_id()
    _set_nice(thread, max(LATER_NICE, os.getpriority(os.PRIO_PROCESS, thread)))
    number = _IOPRIO_SET.get(platform.machine())
    if number is not None:
        ctypes.CDLL(None).syscall(number, _WHO_PROCESS, thread, _BEST_EFFORT_LAST)


def go_first() -> None:
    """Let the calling thread go before the job's: a restore is about to end what runs there."""
    _set_nice(threading.get_native_id(), FIRST_NICE)


@contextlib.contextmanager
def session_goes_first() -> Iterator[None]:
    """Let this process's session go before others as long as it lasts; workers have their own.

    Without CAP_SYS_NICE, or where sessions are not grouped, nothing changes.
    """
    global _first_count, _session_nice
    with _first:
        _first_count += 1
        if _first_count == 1:
            _session_nice = _read_session_nice()
            _set_session_nice(min(FIRST_NICE, _session_nice))
    try:
        yield
    finally:
        with _first:
            _first_count -= 1
            if _first_count == 0:
                _set_session_nice(_session_nice)


def _set_nice(thread: int, nice: int) -> None:
    """On Linux the priority is each thread's own; without CAP_SYS_NICE it stays as it is."""
    with contextlib.suppress(PermissionError):
        os.setpriority(os.PRIO_PROCESS, thread, nice)


def _read_session_nice() -> int:
    try:
        found = re.search(r"nice (-?\d+)", AUTOGROUP.read_text())
    except OSError:
        return 0
    return int(found.group(1)) if found else 0


def _set_session_nice(nice: int) -> None:
    with contextlib.suppress(OSError):
        AUTOGROUP.write_text(str(nice))
