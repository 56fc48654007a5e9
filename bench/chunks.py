"""How fast images are cut, hashed and compared, against blake3 alone on the same bytes.

The pages are noise, so that nothing is saved by compressing or by finding them twice, and lie in
memory, as staging does. One thread: what a shim with several processes' images does at once is as
many times that.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
from blake3 import blake3

from worker_shim.images.chunks.cutting import cut, hasher
from worker_shim.images.chunks.table import Table, as_digests, distinct

SIZE_BYTES = 512 << 20
ROUNDS = 5
GOAL_GB_S = 1.0
FLOOR_PART_BYTES = 1 << 16  # as large as a chunk is in the mean


@dataclass(frozen=True)
class Speed:
    """Medians of rounds that take turns."""

    chunks_gb_s: float  # read, cut, hashed, and looked up among as many others
    blake3_gb_s: float  # the same bytes read and hashed in parts of a chunk's size
    goal_gb_s: float = GOAL_GB_S

    @property
    def ratio(self) -> float:
        """How much of the floor's speed is left."""
        return self.chunks_gb_s / self.blake3_gb_s


def measure() -> Speed:
    """Takes some seconds and half a GiB of memory."""
    with TemporaryDirectory(dir="/dev/shm", prefix="allstop-bench-") as room:
        path = Path(room) / "pages-1.img"
        path.write_bytes(np.random.default_rng(1).bytes(SIZE_BYTES))
        pairs = [(_rate(_chunks, path), _rate(_blake3, path)) for _ in range(ROUNDS)]
    chunks, alone = (statistics.median(each) for each in zip(*pairs, strict=True))
    return Speed(chunks, alone)


def rows(speed: Speed) -> Iterable[tuple[str, str, str]]:
    """For the table."""
    yield (
        "chunks, one core",
        f"{speed.chunks_gb_s:.2f} GB/s, ratio {speed.ratio:.2f}",
        f"blake3 alone {speed.blake3_gb_s:.2f} GB/s, goal ≥ {GOAL_GB_S:.0f} GB/s",
    )


def _rate(work: Callable[[Path], object], path: Path) -> float:
    """By the thread's own processor time: what else runs on the machine is not ours."""
    began = time.thread_time()
    work(path)
    return SIZE_BYTES / (time.thread_time() - began) / 1e9


def _chunks(path: Path) -> None:
    cuts = cut(path, path.name, (), hasher(b""), lambda count: None)
    digests = as_digests(cuts.digests)
    first, _ = distinct(digests)
    Table(digests[::-1]).find(digests[first])


def _blake3(path: Path) -> None:
    buffer = bytearray(1 << 20)
    view = memoryview(buffer)
    with open(path, "rb", buffering=0) as file:
        while count := file.readinto(buffer):
            for at in range(0, count, FLOOR_PART_BYTES):
                blake3(view[at : min(at + FLOOR_PART_BYTES, count)]).digest()
