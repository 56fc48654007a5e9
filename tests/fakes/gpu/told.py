"""The ranks of `bench.gpu` over a fake device: `told.py memory|torch PLACE DEVICE`."""

from __future__ import annotations

import hashlib
import mmap
import random
import sys
import threading
import time
from contextlib import ExitStack
from pathlib import Path

from bench.gpu.serving import Told
from tests.fakes.gpu.device import Gpu

UVM = "nvidia-uvm"
UVM_AREAS = 2  # one more than an ordinary process has


class Memory:
    """As `bench.gpu.rank`'s."""

    def __init__(self, place: str, device: str) -> None:
        self._place, self._gpu = place, Gpu(place, device)
        self._managed: list[mmap.mmap] = []

    def fill(self, name: str, mib: str) -> None:
        """One mebibyte, again and again."""
        self._gpu.write(name, random.Random(name).randbytes(1 << 20) * int(mib))

    def sum(self, name: str) -> str:
        """Of what is in device memory."""
        return hashlib.sha256(self._gpu.read(name)).hexdigest()

    def step(self, name: str, count: str) -> str:
        """Its digest is put at its beginning."""
        for _ in range(int(count)):
            data = self._gpu.read(name)
            digest = hashlib.sha256(data).digest()
            self._gpu.write(name, digest + data[len(digest) :])
        return self.sum(name)

    def copy(self, name: str) -> str:
        """Both ways."""
        began = time.perf_counter()
        data = self._gpu.read(name)
        between = time.perf_counter()
        self._gpu.write(name, data)
        ended = time.perf_counter()
        return f"{(between - began) * 1000:.3f} {(ended - between) * 1000:.3f}"

    def work(self, seconds: str) -> None:
        """It has begun when this returns."""
        begin_work(self._gpu, float(seconds))

    def managed(self, mib: str) -> None:
        """What of managed memory is seen from outside: further areas of the driver's device."""
        path = Path(self._place) / UVM
        path.write_bytes(bytes(mmap.PAGESIZE))
        for _ in range(UVM_AREAS):
            with path.open("r+b") as file:
                self._managed.append(mmap.mmap(file.fileno(), mmap.PAGESIZE))


def begin_work(gpu: Gpu, seconds: float) -> None:
    """Work that lasts so long, in nobody's way."""
    stack = ExitStack()
    stack.enter_context(gpu.work())
    timer = threading.Timer(seconds, stack.close)
    timer.daemon = True
    timer.start()


def main(kind: str, place: str, device: str) -> None:
    """Until the input ends."""
    if kind == "memory":
        Told(Memory(place, device)).serve()
        return
    from bench.gpu.torch_rank import Torch
    from tests.fakes.gpu.torch_place import FakePlace

    Told(Torch(FakePlace(Gpu(place, device)))).serve()


if __name__ == "__main__":
    main(*sys.argv[1:])
