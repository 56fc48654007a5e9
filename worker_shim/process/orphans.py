"""Reaping the orphans that come to the shim: as PID 1 of a container, or as child subreaper."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable

from worker_shim.process import proc

SWEEP_S = 5.0


class Orphans:
    """Reaps children that ended and that nobody collects.

    Nothing tells an orphan from a child that other code of this process started and is about to
    wait for, except that the latter's end is collected at once: one that was a zombie at two
    sweeps, some seconds apart, is an orphan.
    """

    def __init__(self, is_awaited: Callable[[int], bool]) -> None:
        """`is_awaited` says of which pids somebody will still ask for the exit code."""
        self._is_awaited = is_awaited
        self._seen: set[tuple[int, int]] = set()
        self._next = 0.0

    def sweep(self) -> int:
        """Reap what is due, at most once per SWEEP_S; return how many were reaped."""
        now = time.monotonic()
        if now < self._next:
            return 0
        self._next = now + SWEEP_S
        ended = self._ended()
        due = ended & self._seen
        self._seen = ended - due
        return sum(_reap(pid) for pid, _ in due)

    def reap(self, pids: Iterable[int]) -> int:
        """Reap those of these that have ended, without waiting for a second sweep."""
        return sum(_reap(pid) for pid, _ in self._ended(pids))

    def _ended(self, pids: Iterable[int] | None = None) -> set[tuple[int, int]]:
        found = set()
        children = proc.children(os.getpid())
        for pid in children if pids is None else set(children) & set(pids):
            stat = proc.read_stat(pid)
            if stat is not None and stat.state in "ZX" and not self._is_awaited(pid):
                found.add((pid, stat.start_ticks))
        return found


def _reap(pid: int) -> bool:
    try:
        return os.waitpid(pid, os.WNOHANG)[0] == pid
    except ChildProcessError:
        return False
