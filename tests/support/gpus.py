"""A node with fake devices, ranks that use them, and either way to the driver."""

from __future__ import annotations

import atexit
import os
import select
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

from tests.fakes.gpu.build import build
from tests.fakes.gpu.device import Devices
from worker_shim.cuda.library import LibraryCuda
from worker_shim.cuda.port import CudaDriver, GpuProcess
from worker_shim.cuda.program import ProgramCuda
from worker_shim.process.port import Tree
from worker_shim.process.proc import look, read_stat
from worker_shim.process.runner import CommandRunner, Finished

ROOT = Path(__file__).parents[2]
ANSWER_S = 60.0
UUIDS = (
    "GPU-5c89e0f0-0000-4000-8000-000000000000",
    "GPU-5c89e0f0-0000-4000-8000-000000000001",
)


class Rank:
    """A process that uses a device as it is told, a line at a time."""

    def __init__(self, program: Sequence[str]) -> None:
        """It is on its device when this returns."""
        self.process = subprocess.Popen(
            program, cwd=ROOT, start_new_session=True,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        )  # fmt: skip
        self._unread = b""
        try:
            assert self.heard() == "ready", "the process did not get onto its device"
        except BaseException:
            self.close()
            raise

    def tell(self, line: str) -> None:
        """Tell it something without waiting."""
        assert self.process.stdin is not None
        self.process.stdin.write(line.encode() + b"\n")
        self.process.stdin.flush()

    def ask(self, line: str) -> str:
        """Tell it something and wait for the answer."""
        self.tell(line)
        return self.heard()

    def heard(self) -> str:
        """Its next answer; empty when it has ended."""
        assert self.process.stdout is not None
        until = time.monotonic() + ANSWER_S
        while b"\n" not in self._unread:
            ready, *_ = select.select(
                [self.process.stdout], [], [], max(0.0, until - time.monotonic())
            )
            assert ready, f"no answer within {ANSWER_S:g} s"
            more = os.read(self.process.stdout.fileno(), 1 << 16)
            if not more:
                return ""
            self._unread += more
        line, _, self._unread = self._unread.partition(b"\n")
        return line.decode().strip()

    def close(self) -> None:
        """End it."""
        self.process.kill()
        self.process.communicate(timeout=ANSWER_S)

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
