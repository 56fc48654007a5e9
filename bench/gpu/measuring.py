"""Each step of a checkpoint and a restore of ranks with device memory, beside the floor.

The floor of save and restore is what the ranks' own copies of the same bytes take, one rank after
another, as the driver goes through them. Where there is no CRIU, another process has the device's
memory between save and restore, so that what comes back was really elsewhere.
"""

from __future__ import annotations

import shutil
import statistics
import time
from collections.abc import Awaitable, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from bench.gpu.machine import Machine
from bench.gpu.ranks import Ranks
from coordinator.core.errors import AllstopError, SetupError
from worker_shim.criu.driver import CriuDriver
from worker_shim.cuda.choosing import choose
from worker_shim.cuda.port import CudaDriver
from worker_shim.process.runner import CommandRunner

PROCESSES = (1, 2)
SIZES_MIB = (1 << 10, 4 << 10, 16 << 10)
ROUNDS = 3
GPU_SHARE, HOST_SHARE, DISK_SHARE = 0.7, 0.4, 0.8
COPIES = ("save", "restore", "copy_out", "copy_back", "dump", "criu_restore")


@dataclass(frozen=True)
class Steps:
    """Milliseconds, of all ranks; None: it was not done."""

    lock_ms: float
    save_ms: float
    dump_ms: float | None
    criu_restore_ms: float | None
    restore_ms: float
    unlock_ms: float


@dataclass(frozen=True)
class Taken:
    """One size by one engine, medians."""

    engine: str
    processes: int
    mib: int  # of each
    copy_out_ms: float  # the floor of `save`
    copy_back_ms: float  # and of `restore`
    steps: Steps
    image_bytes: int = 0

    def to_fields(self) -> dict[str, Any]:
        """With GB/s for each step that moves all of the memory."""
        steps = asdict(self.steps)
        told = {**asdict(self), **steps}
        del told["steps"]
        moved = self.processes * (self.mib << 20)
        speeds = {
            f"{name}_gb_per_s": round(moved / told[f"{name}_ms"] / 1e6, 3)
            for name in COPIES
            if told[f"{name}_ms"]
        }
        return {**told, **speeds}


def sizes_mib(processes: int, free_bytes: int, host_bytes: int, disk_bytes: int) -> list[int]:
    """Of each process: the usual ones that fit, and the largest that GPU, host and disk allow.

    `disk_bytes` 0: nothing is written there.
    """
    room = min(GPU_SHARE * free_bytes, HOST_SHARE * host_bytes)
    if disk_bytes:
        room = min(room, DISK_SHARE * disk_bytes)
    largest = int(room / processes) >> 20
    return [*(size for size in SIZES_MIB if size < largest), *([largest] if largest else [])]


def room_here(folder: Path) -> tuple[int, int]:
    """Bytes of memory that the host can give, and of disk below a folder."""
    lines = Path("/proc/meminfo").read_text().splitlines()
    available = next(line for line in lines if line.startswith("MemAvailable"))
    return int(available.split()[1]) << 10, shutil.disk_usage(folder).free


async def measure(
    machine: Machine, folder: Path, *, sizes: Sequence[int], rounds: int, criu: str
) -> tuple[list[Taken], list[str]]:
    """All sizes (none given: those that fit), by each engine, of one process and of two.

    One that fails costs the others nothing: it is in the second list, with the reason.
    """
    host_bytes, disk_bytes = room_here(folder)
    found: list[Taken] = []
    failed: list[str] = []
    for processes in PROCESSES:
        fitting = sizes_mib(processes, machine.free_bytes, host_bytes, disk_bytes if criu else 0)
        for mib in sizes or fitting:
            for engine in machine.engines:
                place = folder / f"{engine}-{processes}-{mib}"
                what = f"{processes} x {mib} MiB by {engine}"
                try:
                    one = await measure_one(machine, engine, processes, mib, place, rounds, criu)
                    found.append(one)
                except (AllstopError, OSError) as error:
                    failed.append(f"{what}: {error}")
                finally:
                    shutil.rmtree(place, ignore_errors=True)
    return found, failed


async def measure_one(
    machine: Machine, engine: str, processes: int, mib: int, folder: Path, rounds: int, criu: str
) -> Taken:
    """One size by one engine; raises SetupError when memory is not what it was.

    `criu`: the program; empty: without.
    """
    cuda = choose(engine, CommandRunner())
    images = CriuDriver(CommandRunner(), program=criu) if criu else None
    try:
        async with Ranks(cuda, folder / "ranks") as ranks:
            await ranks.start(*[machine.rank] * processes)
            await ranks.ask_all(f"fill weights {mib}")
            before = await ranks.ask_all("sum weights")
            copies = [await _copies(ranks) for _ in range(rounds)]
            rows, size = [], 0
            for number in range(rounds):
                place = folder / f"images-{number}"
                row, size = await _round(ranks, machine, cuda, mib * processes, images, place)
                rows.append(row)
                shutil.rmtree(place, ignore_errors=True)
            if await ranks.ask_all("sum weights") != before:
                raise SetupError("device memory is not what it was")
    finally:
        await cuda.close()
    out_ms, back_ms = (statistics.median(each) for each in zip(*copies, strict=True))
    return Taken(engine, processes, mib, out_ms, back_ms, _medians(rows), size)


async def _copies(ranks: Ranks) -> tuple[float, float]:
    """One rank after another."""
    told = [await ranks.ask(number, "copy weights") for number in range(ranks.count)]
    out, back = zip(*(map(float, line.split()) for line in told), strict=True)
    return sum(out), sum(back)


async def _round(
    ranks: Ranks,
    machine: Machine,
    cuda: CudaDriver,
    mib: int,
    criu: CriuDriver | None,
    place: Path,
) -> tuple[Steps, int]:
    lock_ms = await _timed(ranks.lock())
    save_ms = await _timed(ranks.save())
    dump_ms = criu_restore_ms = None
    size = 0
    if criu is not None:
        began = time.monotonic()
        size = (await ranks.dump(criu, place)).image_bytes
        dump_ms = (time.monotonic() - began) * 1000
        await ranks.kill()
        criu_restore_ms = await _timed(ranks.criu_restore(criu, place))
    else:
        await overwrite(machine, cuda, mib, place)
    restore_ms = await _timed(ranks.restore())
    unlock_ms = await _timed(ranks.unlock())
    return Steps(lock_ms, save_ms, dump_ms, criu_restore_ms, restore_ms, unlock_ms), size


async def overwrite(machine: Machine, cuda: CudaDriver, mib: int, folder: Path) -> None:
    """Have another process use so much of the device, and end."""
    async with Ranks(cuda, folder) as others:
        await others.start(machine.rank)
        await others.ask(0, f"fill other {mib}")


async def _timed(call: Awaitable[None]) -> float:
    began = time.monotonic()
    await call
    return (time.monotonic() - began) * 1000


def _medians(rows: Sequence[Steps]) -> Steps:
    def median(name: str) -> Any:
        values = [getattr(row, name) for row in rows]
        return None if None in values else statistics.median(values)

    return Steps(**{field.name: median(field.name) for field in fields(Steps)})


def rows_of(found: Sequence[Taken]) -> list[tuple[str, str, str]]:
    """For people."""
    return [
        (
            f"{one.processes} x {one.mib} MiB by {one.engine}",
            ", ".join(f"{name} {_ms(ms)}" for name, ms in asdict(one.steps).items()),
            f"its own copies {one.copy_out_ms:.0f} and {one.copy_back_ms:.0f} ms",
        )
        for one in found
    ]


def _ms(value: float | None) -> str:
    return "-" if value is None else f"{value:.0f}"
