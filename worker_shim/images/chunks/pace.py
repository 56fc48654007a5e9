"""How fast PERSIST may go: bytes a second to the store, and a share of one core."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass

from worker_shim.images.copying import CopyStopped

BURST_S = 0.05  # what was not used a moment ago may be used now
SLEEP_S_MIN = 0.002  # a shorter debt is carried on


@dataclass(frozen=True)
class Limits:
    """What the operator allows; 0: no limit."""

    bytes_per_s: float = 0.0
    cpu_share: float = 0.0  # of one core, all threads together


class Pace:
    """The limits of one put, shared by its threads."""

    def __init__(self, limits: Limits, stop: threading.Event) -> None:
        """Both limits count from now."""
        self._limits, self._stop = limits, stop
        self._lock = threading.Lock()
        self._bytes_until = self._cpu_until = time.monotonic()
        self._thread = threading.local()

    def begin(self) -> None:
        """What the calling thread did before does not count."""
        self._thread.cpu_s = time.thread_time()

    def worked(self) -> None:
        """Wait until the processor time that the calling thread has used since is paid for.

        Raises CopyStopped when told to stop, also where nothing is limited.
        """
        wait_s = 0.0
        if self._limits.cpu_share:
            now = time.thread_time()
            used_s = now - getattr(self._thread, "cpu_s", now)
            self._thread.cpu_s = now
            with self._lock:
                since = max(self._cpu_until, time.monotonic() - BURST_S)
                self._cpu_until = since + used_s / self._limits.cpu_share
                wait_s = self._cpu_until - time.monotonic()
        self._wait(wait_s)

    def sending(self, count: int) -> None:
        """Wait until so many bytes may go to the store; raises CopyStopped when told to stop."""
        wait_s = 0.0
        if self._limits.bytes_per_s:
            with self._lock:
                since = max(self._bytes_until, time.monotonic() - BURST_S)
                self._bytes_until = since + count / self._limits.bytes_per_s
                wait_s = self._bytes_until - time.monotonic()
        self._wait(wait_s)

    def _wait(self, wait_s: float) -> None:
        if wait_s >= SLEEP_S_MIN:
            self._stop.wait(wait_s)
        if self._stop.is_set():
            raise CopyStopped
