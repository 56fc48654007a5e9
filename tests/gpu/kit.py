"""The machine that these tests run on: this one, or, to try them, one whose devices are fakes."""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path

from bench.gpu.machine import Machine, here, lacking_torch, seen
from tests.fakes.gpu.device import Devices
from tests.fakes.nccl.build import build as build_nccl
from tests.fakes.nvml.build import described
from tests.support.gpus import UUIDS, built
from tests.support.nvml import library

ROOT = Path(__file__).parents[2]
FAKE = "TRY_GPU_TESTS_IN"  # a folder: fake devices are made there
DEVICE_BYTES = 1 << 30
FAKE_DRIVER = "580.95.05"
MIB, FAKE_MIB = 512, 8
KINDS = ("memory", "torch")


def is_fake() -> bool:
    """Whether the devices are."""
    return FAKE in os.environ


def machine() -> Machine:
    """The machine; raises SetupError where it lacks something."""
    if not is_fake():
        return asyncio.run(here())
    place = os.environ[FAKE]
    Devices.make(Path(place), dict.fromkeys(UUIDS, DEVICE_BYTES))
    rank = (sys.executable, "-m", "tests.fakes.gpu.told", "memory", place, UUIDS[0])
    train = ("-m", "tests.fakes.gpu.train", place, UUIDS[0])
    return asyncio.run(seen(FAKE_DRIVER, rank=rank, train=train))


def torch_rank() -> tuple[str, ...]:
    """A rank that trains."""
    if is_fake():
        place = os.environ[FAKE]
        return (sys.executable, "-m", "tests.fakes.gpu.told", "torch", place, UUIDS[0])
    return (sys.executable, "-m", "bench.gpu.torch_rank")


def why_no_torch() -> str:
    """Empty where a rank can train on the device."""
    return "" if is_fake() else lacking_torch()


def size_mib() -> int:
    """Of device memory that a rank has."""
    return FAKE_MIB if is_fake() else MIB


def fake_environment(folder: Path) -> dict[str, str]:
    """What these tests are started with to use fake devices; all of it is below the folder."""
    place, told = folder / "devices", folder / "nvml"
    (folder / "nccl").mkdir(parents=True)
    told.write_text(described(UUIDS, "events", name="fake", driver=FAKE_DRIVER))
    libraries = f"{built()}:{library()}"
    return {
        FAKE: str(place),
        "PATH": f"{built()}:{os.environ['PATH']}",
        "LD_LIBRARY_PATH": libraries,
        "OMP_NUM_THREADS": "1",
        "FAKE_GPU_PLACE": str(place),
        "FAKE_GPU_FAULT": str(place / "faults"),
        "FAKE_NVML": str(told),
        "ALLSTOP_NVIDIA_DEVICES": str(place / "nvidia"),
        "ALLSTOP_NCCL_SHIM": str(build_nccl(folder / "nccl")),
    }
