"""Looking at single tasks through /proc, and ending what a failed restore left."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import time
from collections.abc import Iterable, Mapping
from pathlib import Path

PROC = Path("/proc")
POLL_S = 0.005
ANCESTORS_MAX = 64
STOPPED_STATES = frozenset("TZX")  # group-stopped, or already dead at the dump


def start_ticks(pids: Iterable[int]) -> dict[int, int]:
    """Start times of those of these processes that exist: they tell a reused pid apart."""
    found: dict[int, int] = {}
    for pid in pids:
        fields = stat_fields(PROC / str(pid) / "stat")
        if fields:
            found[pid] = int(fields[19])
    return found


def stat_fields(path: Path) -> list[str]:
    """Fields 3 and on of a stat file; empty when the task is gone."""
    try:
        return path.read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return []


def parent_of(pid: int) -> int:
    """The parent's pid; 0 when the process is gone."""
    fields = stat_fields(PROC / str(pid) / "stat")
    return int(fields[1]) if fields else 0


def states(pids: Iterable[int]) -> dict[int, str]:
    """The state letter of every task (thread) of these processes; `-`: the process is gone."""
    found: dict[int, str] = {}
    for pid in pids:
        threads = sorted((PROC / str(pid) / "task").glob("[0-9]*"))
        if not threads:
            found[pid] = "-"
        for thread in threads:
            fields = stat_fields(thread / "stat")
            if fields:
                found[int(thread.name)] = fields[0]
    return found


def child_with(argument: str) -> int:
    """Our child with this argument in its command line; 0 when there is none."""
    for children in (PROC / "self" / "task").glob("[0-9]*/children"):
        for child in children.read_text().split():
            with contextlib.suppress(FileNotFoundError, ProcessLookupError):
                line = (PROC / child / "cmdline").read_bytes().split(b"\0")
                if os.fsencode(argument) in line:
                    return int(child)
    return 0


def tracer_of(pid: int) -> int:
    """Who traces this process; 0 for nobody, also when the process is gone."""
    try:
        status = (PROC / str(pid) / "status").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return 0
    return int(status.partition("\nTracerPid:")[2].split()[0])


async def wait_stopped(pids: Iterable[int], *, deadline_s: float) -> dict[int, str]:
    """Wait until every task of these processes is stopped; return those that are not in time.

    CRIU ends when it has sent SIGSTOP to what it restored, which takes effect before the task runs
    a single instruction of its own, but not before CRIU has ended.
    """
    until = time.monotonic() + deadline_s
    everyone = tuple(pids)
    while True:
        moving = {
            task: state for task, state in states(everyone).items() if state not in STOPPED_STATES
        }
        if not moving or time.monotonic() >= until:
            return moving
        await asyncio.sleep(POLL_S)


async def wait_untraced(pids: Iterable[int], *, deadline_s: float) -> None:
    """Wait until nobody traces these processes, or the time has run out."""
    until = time.monotonic() + deadline_s
    everyone = tuple(pids)
    while any(map(tracer_of, everyone)):
        if time.monotonic() >= until:
            return
        await asyncio.sleep(POLL_S)


async def end_new(pids: Iterable[int], before: Mapping[int, int], *, deadline_s: float) -> None:
    """SIGKILL those of these processes that a failed restore forked, and reap our own children.

    Ours are those that did not exist `before` and descend from this process: another program may
    sit on a pid of the images by chance. The root stays as our zombie, whose pid the next try
    needs, so it is reaped here.
    """
    until = time.monotonic() + deadline_s
    everyone, ours = tuple(pids), dict[int, int]()
    while True:
        now = start_ticks(everyone)
        new = {pid: ticks for pid, ticks in now.items() if before.get(pid) != ticks}
        ours |= {pid: ticks for pid, ticks in new.items() if _descends_from_us(pid)}
        left = [pid for pid, ticks in new.items() if ours.get(pid) == ticks]
        for pid in left:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
            _reap(pid)
        if not left or time.monotonic() >= until:
            return
        await asyncio.sleep(POLL_S)


def _reap(pid: int) -> None:
    """Collect a child of ours that has ended; nothing happens for anybody else's."""
    with contextlib.suppress(ChildProcessError):
        os.waitpid(pid, os.WNOHANG)


def _descends_from_us(pid: int) -> bool:
    for _ in range(ANCESTORS_MAX):
        if pid in (0, 1):
            return False
        pid = parent_of(pid)
        if pid == os.getpid():
            return True
    return False
