"""Processes of a worker that lost their root: torchrun killed hard leaves its ranks behind.

They are known by their environment, which names the worker's control page.
"""

from __future__ import annotations

import os
import select
import signal
from collections.abc import Callable, Iterable
from pathlib import Path

from worker_shim.hook.page import PATH_VARIABLE

KILL_S_MAX = 5.0
ROUNDS_MAX = 20


def strays_of(page: Path) -> tuple[int, ...]:
    """Pids whose environment names this control page; zombies have none."""
    mark = f"{PATH_VARIABLE}={page}".encode()
    found = []
    for entry in os.listdir("/proc"):
        if entry.isdigit() and int(entry) != os.getpid():
            try:
                environment = Path("/proc", entry, "environ").read_bytes()
            except OSError:
                continue
            if mark in environment.split(b"\0"):
                found.append(int(entry))
    return tuple(found)


def kill_strays(page: Path) -> int:
    """Kill them until there are none, at most KILL_S_MAX for each; return how many there were."""
    return kill_all(lambda: strays_of(page))


def kill_all(find: Callable[[], Iterable[int]]) -> int:
    """Kill whom `find` finds, until it finds nobody; return how many there were."""
    killed = 0
    for _ in range(ROUNDS_MAX):
        pids = tuple(find())
        if not pids:
            break
        killed += sum(_kill(pid) for pid in pids)
    return killed


def _kill(pid: int) -> bool:
    try:
        handle = os.pidfd_open(pid)
    except ProcessLookupError:
        return False
    try:
        signal.pidfd_send_signal(handle, signal.SIGKILL)
        poller = select.poll()
        poller.register(handle, select.POLLIN)
        poller.poll(KILL_S_MAX * 1000)
        return True
    except ProcessLookupError:
        return False
    finally:
        os.close(handle)
