"""What device memory costs a checkpoint: lock, save, restore, unlock, by each way to the driver.

One process with so much device memory. The floor is a plain copy of the same bytes from and to the
device by the process itself. Needs a GPU, `cuda-bindings` and root.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Awaitable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from worker_shim.cuda.choosing import choose
from worker_shim.cuda.port import CudaDriver
from worker_shim.process.proc import look
from worker_shim.process.runner import CommandRunner

ROOT = Path(__file__).parents[1]
RANK = (sys.executable, "-m", "bench.gpu_rank")
SIZES_MIB = (256, 1024, 4096)
ROUNDS = 3
DEADLINE_S = 300.0
END_S = 30.0


class Process:
    """A process that uses a device as it is told."""

    def __init__(self, program: Sequence[str] = RANK, env: Mapping[str, str] | None = None) -> None:
        """It is on its device when this returns."""
        self.process = subprocess.Popen(
            program, env=env, cwd=ROOT, text=True, start_new_session=True,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        )  # fmt: skip
        if self.heard() != "ready":
            self.close()
            raise RuntimeError("the process did not get onto its device")

    def tell(self, line: str) -> None:
        """Tell it something without waiting."""
        assert self.process.stdin is not None
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()

    def ask(self, line: str) -> str:
        """Tell it something and wait for the answer."""
        self.tell(line)
        return self.heard()

    def heard(self) -> str:
        """Its next answer."""
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()

    def close(self) -> None:
        """End it."""
        self.process.kill()
        self.process.communicate()


@dataclass(frozen=True)
class Taken:
    """Milliseconds, medians."""

    engine: str
    mib: int
    copy_ms: float  # the process's own copy of all of it from the device, and its digest
    lock_ms: float
    save_ms: float
    restore_ms: float
    unlock_ms: float


def engines() -> tuple[str, ...]:
    """Those that this machine has."""
    found = ("library", "program")
    return found if shutil.which("cuda-checkpoint") else found[:1]


def measure(sizes_mib: Sequence[int] = SIZES_MIB, rounds: int = ROUNDS) -> list[Taken]:
    """Every size by every engine."""
    return [
        asyncio.run(measure_one(engine, mib, rounds)) for mib in sizes_mib for engine in engines()
    ]


async def measure_one(engine: str, mib: int, rounds: int, program: Sequence[str] = RANK) -> Taken:
    """One size by one engine; raises RuntimeError when memory is not what it was."""
    driver, process = choose(engine, CommandRunner()), Process(program, dict(os.environ))
    try:
        process.ask(f"fill weights {mib}")
        before = process.ask("sum weights")
        copied = [_timed_ask(process) for _ in range(rounds)]
        taken = [await _round(driver, process) for _ in range(rounds)]
        if process.ask("sum weights") != before:
            raise RuntimeError("device memory is not what it was")
    finally:
        process.close()
        await driver.close()
    steps = [statistics.median(each) for each in zip(*taken, strict=True)]
    return Taken(engine, mib, statistics.median(copied), *steps)


async def _round(driver: CudaDriver, process: Process) -> tuple[float, float, float, float]:
    tree = look(process.process.pid)
    (one,) = await driver.processes(tree, deadline_s=DEADLINE_S)
    return (
        await _timed(driver.lock(one, timeout_s=END_S, deadline_s=DEADLINE_S)),
        await _timed(driver.checkpoint(one, deadline_s=DEADLINE_S)),
        await _timed(driver.restore(one, {}, deadline_s=DEADLINE_S)),
        await _timed(driver.unlock(one, deadline_s=DEADLINE_S)),
    )


async def _timed(call: Awaitable[None]) -> float:
    began = time.monotonic()
    await call
    return (time.monotonic() - began) * 1000


def _timed_ask(process: Process) -> float:
    began = time.monotonic()
    process.ask("sum weights")
    return (time.monotonic() - began) * 1000


def rows(found: Sequence[Taken]) -> list[tuple[str, str, str]]:
    """For people."""
    return [
        (
            f"device memory, {one.mib} MiB by {one.engine}",
            f"lock {one.lock_ms:.0f}, save {one.save_ms:.0f}, restore {one.restore_ms:.0f}, "
            f"unlock {one.unlock_ms:.0f} ms",
            f"its own copy and digest {one.copy_ms:.0f} ms",
        )
        for one in found
    ]
