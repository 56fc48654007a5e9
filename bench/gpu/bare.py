"""By hand, run inside a host of a lab: the driver's checkpoint and CRIU's of one tree, and back.

    python -m bench.gpu.bare dump ENGINE ROOT_PID DIRECTORY
    python -m bench.gpu.bare restore ENGINE STORE PLACE DIGEST DIRECTORY GPU_PID...

As `bench.bare`: get ready, print `ready`, wait for a line, print how many milliseconds it took.
`dump` locks and saves every process with GPU state, has CRIU write the tree, and lets it go on.
`restore` has CRIU bring images of allstop's back and then the driver their device memory; it then
takes them off the device again and ends them, and prints how long that took.
"""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import suppress
from pathlib import Path

from bench import bare
from worker_shim.criu.binary import clean_environment, find_criu
from worker_shim.criu.images import read_facts
from worker_shim.cuda.choosing import choose
from worker_shim.cuda.port import CudaDriver, GpuProcess
from worker_shim.images.staging import IMAGES
from worker_shim.process.proc import look, read_stat
from worker_shim.process.runner import CommandRunner

DEADLINE_S = 300.0
LOCK_S = 60.0
DUMP = ("--leave-running", "--network-lock", "nftables", "--link-remap", "--ghost-limit", "512M")


def criu(verb: str, directory: Path, *arguments: str) -> None:
    """One call; raises SystemExit with its words. CRIU's own CUDA plugin is kept out."""
    plugins = directory / "no-plugins"
    plugins.mkdir(exist_ok=True)
    line = [str(find_criu()), verb, *arguments, *bare.OPTIONS, "--images-dir", str(directory)]
    line += ["--log-file", "bare.log", "--no-default-config", "--libdir", str(plugins)]
    done = subprocess.run(line, env=clean_environment(), cwd=directory, timeout=DEADLINE_S)
    if done.returncode != 0:
        words = (directory / "bare.log").read_text(errors="replace")[-2000:]
        raise SystemExit(f"criu {verb} gave {done.returncode}: {words}")


def process_of(pid: int) -> GpuProcess:
    """As the driver's port names it."""
    stat = read_stat(pid)
    if stat is None:
        raise SystemExit(f"process {pid} is gone")
    return GpuProcess(pid, stat.start_ticks)


async def each(processes: Iterable[GpuProcess], act: Callable[..., Awaitable[None]]) -> None:
    """One after another."""
    for process in processes:
        await act(process, deadline_s=DEADLINE_S)


async def off(cuda: CudaDriver, processes: Sequence[GpuProcess]) -> None:
    """Locked, all of them, then saved."""
    for process in processes:
        await cuda.lock(process, timeout_s=LOCK_S, deadline_s=DEADLINE_S)
    await each(processes, cuda.checkpoint)


async def on(cuda: CudaDriver, processes: Sequence[GpuProcess]) -> None:
    """Restored, all of them, then unlocked."""
    for process in processes:
        await cuda.restore(process, {}, deadline_s=DEADLINE_S)
    await each(processes, cuda.unlock)


async def dump(engine: str, root_pid: int, directory: Path) -> None:
    """Into an empty directory; it goes on as it was."""
    cuda = choose(engine, CommandRunner())
    try:
        processes = await cuda.processes(look(root_pid), deadline_s=DEADLINE_S)
        bare.warm_up()
        bare.wait_for_the_others()
        began = time.perf_counter()
        await off(cuda, processes)
        criu("dump", directory, "--tree", str(root_pid), *DUMP)
        await on(cuda, processes)
        bare.tell((time.perf_counter() - began) * 1000)
    finally:
        await cuda.close()


async def restore(engine: str, images: Path, gpu_pids: Sequence[int]) -> None:
    """Images whose files and control page are there."""
    cuda = choose(engine, CommandRunner())
    pids = read_facts(images).pids
    try:
        await cuda.processes(look(os.getpid()), deadline_s=DEADLINE_S)  # so that a helper runs
        bare.warm_up()
        bare.wait_for_the_others()
        began = time.perf_counter()
        criu("restore", images, "--restore-detached")
        signal_all(pids, signal.SIGCONT)
        processes = [process_of(pid) for pid in gpu_pids]
        await on(cuda, processes)
        bare.tell((time.perf_counter() - began) * 1000)
        bare.wait_for_the_others()
        began = time.perf_counter()
        await off(cuda, processes)
        bare.end_now(pids)
        bare.tell((time.perf_counter() - began) * 1000)
    finally:
        await cuda.close()


def signal_all(pids: Iterable[int], number: signal.Signals) -> None:
    """Those that are there."""
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, number)


def main() -> None:
    """Do what the command line says."""
    verb, engine, *rest = sys.argv[1:]
    if verb == "dump":
        Path(rest[1]).mkdir(parents=True)
        asyncio.run(dump(engine, int(rest[0]), Path(rest[1])))
        return
    store, place, digest, directory, *pids = rest
    bare.lay_out(Path(store), place, digest, Path(directory))
    asyncio.run(restore(engine, Path(directory) / IMAGES, [int(pid) for pid in pids]))


if __name__ == "__main__":
    main()
