"""A node with fake devices, ranks that use them, and either way to the driver."""

from __future__ import annotations

import atexit
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

from bench.gpu import Process
from tests.fakes.gpu.build import build
from tests.fakes.gpu.device import Devices
from worker_shim.cuda.library import LibraryCuda
from worker_shim.cuda.port import CudaDriver, GpuProcess
from worker_shim.cuda.program import ProgramCuda
from worker_shim.process.port import Tree
from worker_shim.process.proc import look, read_stat
from worker_shim.process.runner import CommandRunner, Finished

ROOT = Path(__file__).parents[2]
UUIDS = (
    "GPU-5c89e0f0-0000-4000-8000-000000000000",
    "GPU-5c89e0f0-0000-4000-8000-000000000001",
)


class Rank(Process):
    """A process that uses a device."""

    @property
    def gpu_process(self) -> GpuProcess:
        """As drivers name it."""
        stat = read_stat(self.process.pid)
        assert stat is not None
        return GpuProcess(self.process.pid, stat.start_ticks)


@dataclass
class GpuNode:
    """Devices and the ranks that use them."""

    folder: Path
    programs: Path
    devices: Mapping[str, int]
    ranks: list[Rank] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.made = Devices.make(self.folder, dict(self.devices))

    @property
    def faults(self) -> Path:
        """What the driver does wrong."""
        return self.folder / "faults"

    @property
    def environment(self) -> dict[str, str]:
        """What whoever calls the driver needs."""
        return {
            "LD_LIBRARY_PATH": str(self.programs),
            "FAKE_GPU_PLACE": str(self.folder),
            "FAKE_GPU_FAULT": str(self.faults),
        }

    def rank(self, number: int = 0) -> Rank:
        """A process that uses the device of that number."""
        device = list(self.devices)[number]
        program = (sys.executable, "-m", "tests.fakes.gpu.rank", str(self.folder), device)
        self.ranks.append(Rank(program))
        return self.ranks[-1]

    def close(self) -> None:
        """End everything."""
        for rank in reversed(self.ranks):
            rank.close()
        self.made.close()


@contextmanager
def gpu_node(folder: Path, devices: Mapping[str, int]) -> Iterator[GpuNode]:
    """A node with devices of these sizes."""
    made = GpuNode(folder, built(), devices)
    try:
        yield made
    finally:
        made.close()


@cache
def built() -> Path:
    """The driver and its program, compiled once."""
    folder = Path(tempfile.mkdtemp(prefix="allstop-fake-gpu-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    build(folder)
    return folder


class WithEnvironment(CommandRunner):
    """Runs programs with additions to their environment."""

    def __init__(self, env: Mapping[str, str]) -> None:
        super().__init__()
        self._env = env

    async def run(self, argv, *, deadline_s, env=None, cwd=None, stdin=None) -> Finished:  # type: ignore[no-untyped-def]
        env = {**(os.environ if env is None else env), **self._env}
        return await super().run(argv, deadline_s=deadline_s, env=env, cwd=cwd, stdin=stdin)


def driver_of(kind: str, node: GpuNode) -> CudaDriver:
    """The driver of a node, by its program or by its library."""
    prefix = str(node.folder / "nvidia")
    if kind == "program":
        commands = WithEnvironment(node.environment)
        return ProgramCuda(commands, node.programs / "cuda-checkpoint", device_prefix=prefix)
    return LibraryCuda(env=node.environment, device_prefix=prefix)


def tree_of(*ranks: Rank) -> Tree:
    """These processes as one tree."""
    return Tree(tuple(p for rank in ranks for p in look(rank.process.pid).processes))
