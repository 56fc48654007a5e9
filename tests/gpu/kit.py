"""A rank on a GPU, and the ways to its driver: the real ones, or, to try these tests, fakes."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from bench.gpu import Process
from tests.fakes.gpu.device import Devices
from tests.support.gpus import UUIDS, built
from worker_shim.cuda.choosing import choose
from worker_shim.cuda.port import CudaDriver
from worker_shim.process.runner import CommandRunner

ROOT = Path(__file__).parents[2]
FAKE = "TRY_GPU_TESTS_IN"  # a folder: fake devices are made there
DEVICE_BYTES = 1 << 30


@dataclass(frozen=True)
class Machine:
    """Where the tests run."""

    engine: str
    mib: int = 512
    program: Sequence[str] = (sys.executable, "-m", "bench.gpu_rank")
    env: dict[str, str] = field(default_factory=lambda: dict(os.environ))

    def rank(self) -> Process:
        """A process on the first device."""
        return Process(self.program, self.env)

    def driver(self) -> CudaDriver:
        """The driver port by this machine's engine."""
        return choose(self.engine, CommandRunner())


def machine(engine: str) -> Machine:
    """This one, or one with fake devices."""
    folder = os.environ.get(FAKE, "")
    if not folder:
        return Machine(engine)
    place = Path(folder)
    Devices.make(place, dict.fromkeys(UUIDS, DEVICE_BYTES))
    program = (sys.executable, "-m", "tests.fakes.gpu.rank", str(place), UUIDS[0])
    return Machine(engine, 16, program)


def fake_environment(place: Path) -> dict[str, str]:
    """What these tests are started with to use fake devices in that place."""
    path = f"{built()}:{os.environ['PATH']}"
    return {
        FAKE: str(place),
        "PATH": path,
        "LD_LIBRARY_PATH": str(built()),
        "FAKE_GPU_PLACE": str(place),
        "FAKE_GPU_FAULT": str(place / "faults"),
        "ALLSTOP_NVIDIA_DEVICES": str(place / "nvidia"),
    }
