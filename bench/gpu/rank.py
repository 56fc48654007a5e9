"""A process that uses a real GPU by the driver API, as it is told (see `serving`)."""

from __future__ import annotations

import ctypes
import random
import time
from collections.abc import Iterator
from typing import Any

from blake3 import blake3
from cuda.bindings import driver

from bench.gpu.serving import Told

PIECE_BYTES = 64 << 20  # copied at once, through memory that the driver has locked
ATTACH_GLOBAL = 1  # CU_MEM_ATTACH_GLOBAL
SPIN = b"""
.version 6.3
.target sm_75
.address_size 64
.visible .entry spin(.param .u64 span_ns)
{
    .reg .pred %p<2>;
    .reg .b64 %rd<5>;
    ld.param.u64 %rd1, [span_ns];
    mov.u64 %rd2, %globaltimer;
again:
    mov.u64 %rd3, %globaltimer;
    sub.s64 %rd4, %rd3, %rd2;
    setp.lt.u64 %p1, %rd4, %rd1;
    @%p1 bra again;
    ret;
}
\0"""


def checked(result: tuple[Any, ...]) -> Any:
    """The value of a call; raises RuntimeError with the driver's name of what went wrong."""
    code, *values = result
    if int(code):
        raise RuntimeError(str(code))
    return values[0] if values else None


class Memory:
    """Device memory by name."""

    def __init__(self) -> None:
        """Be on the first device."""
        checked(driver.cuInit(0))
        device = checked(driver.cuDeviceGet(0))
        checked(driver.cuCtxSetCurrent(checked(driver.cuDevicePrimaryCtxRetain(device))))
        self._memory: dict[str, tuple[int, int]] = {}
        self._buffer = int(checked(driver.cuMemAllocHost(PIECE_BYTES)))
        self._spin: Any = None

    def fill(self, name: str, mib: str) -> None:
        """Every piece of it is another one."""
        size = int(mib) << 20
        address = int(checked(driver.cuMemAlloc(size)))
        pattern = random.Random(name).randbytes(1 << 20) * (PIECE_BYTES >> 20)
        for at, length in _pieces(size):
            data = at.to_bytes(8, "little") + pattern[8:length]
            checked(driver.cuMemcpyHtoD(address + at, data, length))
        self._memory[name] = (address, size)

    def sum(self, name: str) -> str:
        """blake3 of it, read back."""
        address, size = self._memory[name]
        digest = blake3()
        for at, length in _pieces(size):
            checked(driver.cuMemcpyDtoH(self._buffer, address + at, length))
            digest.update(ctypes.string_at(self._buffer, length))
        return str(digest.hexdigest())

    def step(self, name: str, count: str) -> str:
        """Its digest is put at its beginning."""
        for _ in range(int(count)):
            digest = bytes.fromhex(self.sum(name))
            checked(driver.cuMemcpyHtoD(self._memory[name][0], digest, len(digest)))
        return self.sum(name)

    def copy(self, name: str) -> str:
        """Nothing but the copies is in the times."""
        address, size = self._memory[name]
        out_s = back_s = 0.0
        for at, length in _pieces(size):
            began = time.perf_counter()
            checked(driver.cuMemcpyDtoH(self._buffer, address + at, length))
            between = time.perf_counter()
            checked(driver.cuMemcpyHtoD(address + at, self._buffer, length))
            checked(driver.cuCtxSynchronize())
            out_s += between - began
            back_s += time.perf_counter() - between
        return f"{out_s * 1000:.3f} {back_s * 1000:.3f}"

    def work(self, seconds: str) -> None:
        """A kernel that looks at the device's clock."""
        if self._spin is None:
            module = checked(driver.cuModuleLoadData(SPIN))
            self._spin = checked(driver.cuModuleGetFunction(module, b"spin"))
        arguments = ((int(float(seconds) * 1e9),), (ctypes.c_uint64,))
        checked(driver.cuLaunchKernel(self._spin, *(1, 1, 1), *(1, 1, 1), 0, 0, arguments, 0))

    def managed(self, mib: str) -> None:
        """Memory that the driver moves to and fro, touched on the device."""
        size = int(mib) << 20
        address = checked(driver.cuMemAllocManaged(size, ATTACH_GLOBAL))
        checked(driver.cuMemsetD8(address, 1, size))
        checked(driver.cuCtxSynchronize())


def _pieces(size: int) -> Iterator[tuple[int, int]]:
    for at in range(0, size, PIECE_BYTES):
        yield at, min(PIECE_BYTES, size - at)


if __name__ == "__main__":
    Told(Memory()).serve()
