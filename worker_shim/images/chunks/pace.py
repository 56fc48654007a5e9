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
    """What the operator allows a shim, whatever it stores at once; 0: no limit."""

    bytes_per_s: float = 0.0
    cpu_share: float = 0.0  # of one core


class Bucket:
    """So much a second for all who take from it."""

    def __init__(self, per_s: float) -> None:
        """0: no limit."""
        self._per_s = per_s
        self._until = 0.0
        self._lock = threading.Lock()

    def take(self, amount: float) -> float:
        """How many seconds to wait for it."""
        if not self._per_s:
            return 0.0
        with self._lock:
            now = time.monotonic()
            self._until = max(self._until, now - BURST_S) + amount / self._per_s
            return self._until - now


class Budget:
    """The limits of a shim, shared by all its puts."""

    def __init__(self, limits: Limits) -> None:
        """Nothing has been taken."""
        self.sending, self.working = Bucket(limits.bytes_per_s), Bucket(limits.cpu_share)


class Pace:
    """The budget as one put uses it, which may be told to stop; shared by the put's threads."""

    def __init__(self, budget: Budget, stop: threading.Event) -> None:
        """The put's own clock is that of its threads."""
        self._budget, self._stop = budget, stop
        self._thread = threading.local()

    def begin(self) -> None:
        """What the calling thread did before does not count."""
        self._thread.cpu_s = time.thread_time()

    def worked(self) -> None:
        """Wait until the processor time that the calling thread has used since is paid for.

        Raises CopyStopped when told to stop, also where nothing is limited.
        """
        now = time.thread_time()
        used_s = now - getattr(self._thread, "cpu_s", now)
        self._thread.cpu_s = now
        self._wait(self._budget.working.take(used_s))

    def sending(self, count: int) -> None:
        """Wait until so many bytes may go to the store; raises CopyStopped when told to stop."""
        self._wait(self._budget.sending.take(count))

    def _wait(self, wait_s: float) -> None:
        if wait_s >= SLEEP_S_MIN:
            self._stop.wait(wait_s)
        if self._stop.is_set():
            raise CopyStopped
