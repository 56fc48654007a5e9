"""Workers of one attempt agree, without talking, on who stores a chunk that several of them have.

Each publishes the list of what it has, reads the lists of the others for a while, and stores a
chunk itself when it comes first in the chunk's own order of those seen to have it. Who was seen may
differ from worker to worker: whoever leaves a chunk to another leaves it to one that comes before
itself, so nobody waits in a circle; and whoever left one looks in the end whether it is there.
The lists are advice: they hold eight bytes of each digest, and nothing is believed because of them.
"""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass

import numpy as np
import zstandard
from numpy.typing import NDArray

from coordinator.core.errors import DriverError
from worker_shim.images.chunks.table import Digests
from worker_shim.images.copying import CopyStopped
from worker_shim.images.objects.port import ObjectMissing, ObjectStore
from worker_shim.images.sealing import Sealing

NAME = "list"
MEET_S = 30.0  # how long to wait for a list, or for another's pack, at most
POLL_S = (0.05, 1.0)  # from, to
LISTS_BYTES_MAX = 1 << 30  # of others' lists that one worker reads

Words = NDArray[np.uint64]


@dataclass(frozen=True)
class Meeting:
    """One worker's view of the attempt."""

    objects: ObjectStore
    sealing: Sealing
    attempt: str  # job/action
    worker: int
    workers: int

    def list_name(self, worker: int) -> str:
        """Where a worker's list is."""
        return f"{self.attempt}/{worker}/{NAME}"

    def publish(self, digests: Digests) -> int:
        """Tell the others what this worker has; returns how many bytes that took."""
        name = self.list_name(self.worker)
        plain = np.sort(digests[:, 0]).tobytes()
        data = self.sealing.seal(zstandard.ZstdCompressor(level=1).compress(plain), name.encode())
        self.objects.put(name, [data])
        return len(data)

    def left_to_others(
        self, digests: Digests, *, wait_s: float, stop: threading.Event
    ) -> NDArray[np.bool_]:
        """Which chunks another worker comes before this one for; raises CopyStopped.

        A list that cannot be read counts as none.
        """
        best = _order(digests[:, 0], self.worker)
        left = np.zeros(len(digests), bool)
        read_bytes = 0
        missing = [(self.worker + step) % self.workers for step in range(1, self.workers)]
        for _ in Polls(wait_s, stop):
            for other in tuple(missing):
                words = self._list(other)
                if words is None:
                    continue
                missing.remove(other)
                read_bytes += words.nbytes
                theirs = _order(digests[:, 0], other)
                before = np.isin(digests[:, 0], words) & (theirs < best)
                best[before] = theirs[before]
                left |= before
            if not missing or read_bytes > LISTS_BYTES_MAX:
                break
        return left

    def _list(self, worker: int) -> Words | None:
        """None: not there yet."""
        name = self.list_name(worker)
        try:
            sealed = self.objects.get(name)
        except ObjectMissing:
            return None
        try:
            opened = self.sealing.open(sealed, name.encode())
            return np.frombuffer(zstandard.ZstdDecompressor().decompress(opened), np.uint64)
        except (DriverError, zstandard.ZstdError, ValueError):
            return np.zeros(0, np.uint64)


class Polls:
    """Times to look, less and less often, for so long; at least one. Raises CopyStopped."""

    def __init__(self, wait_s: float, stop: threading.Event) -> None:
        """The time counts from now."""
        self._wait_s, self._stop = wait_s, stop
        self.again()

    def again(self) -> None:
        """Something moved: the whole time begins anew."""
        self._until = time.monotonic() + self._wait_s
        self._pause_s = 0.0

    def __iter__(self) -> Polls:
        """Itself."""
        return self

    def __next__(self) -> None:
        """Wait for the next time."""
        if self._pause_s and time.monotonic() >= self._until:
            raise StopIteration
        if self._stop.wait(self._pause_s):
            raise CopyStopped
        self._pause_s = min(POLL_S[1], max(POLL_S[0], 2 * self._pause_s))


def _order(words: Words, worker: int) -> Words:
    """A number for each chunk and worker, lower first; the same on every node."""
    mixed = words ^ np.uint64((worker + 1) * 0x9E3779B97F4A7C15 & 0xFFFFFFFFFFFFFFFF)
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        mixed = (mixed ^ (mixed >> np.uint64(shift))) * np.uint64(factor)
    return mixed ^ (mixed >> np.uint64(31))
