"""What there is here to measure with: a GPU, ways to its driver, CRIU; and what is missing."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import platform
import re
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass

from coordinator.core.errors import SetupError
from coordinator.core.versions import version_of
from worker_shim.criu.binary import clean_environment, find_criu
from worker_shim.cuda.choosing import BINDINGS, LIBRARY, PROGRAM, PROGRAM_ENGINE, choose
from worker_shim.cuda.devices import kernel_driver
from worker_shim.inventory.inventory import GpuInventory
from worker_shim.process.runner import CommandRunner

DRIVER_MIN = (570,)
CHECK_S = 60.0
RANK = (sys.executable, "-m", "bench.gpu.rank")
TRAIN = ("-m", "bench.gpu.train")  # after torchrun's own options
PACKAGES = ("allstop", "cuda-bindings", "nvidia-ml-py", "torch")


@dataclass(frozen=True)
class Machine:
    """A machine with a GPU; `rank` and `train` are the programs that use it."""

    model: str
    driver: str
    free_bytes: int  # of the first GPU
    engines: Sequence[str]
    rank: Sequence[str] = RANK
    train: Sequence[str] = TRAIN


def engines() -> tuple[str, ...]:
    """The ways to the driver that can be chosen here."""
    found = []
    for engine in (LIBRARY, PROGRAM_ENGINE):
        with suppress(SetupError):
            choose(engine, CommandRunner())
            found.append(engine)
    return tuple(found)


def lacking(driver: str | None = None) -> str:
    """Why nothing can be done with a GPU here; empty where it can. `driver`: None looks."""
    have = kernel_driver() if driver is None else driver
    if not have:
        return "there is no NVIDIA driver here (no /proc/driver/nvidia/version)"
    if version_of(have) < DRIVER_MIN:
        return f"NVIDIA driver {have} is here, and 570 or newer is needed"
    if not engines():
        ways = f"{BINDINGS} (pip install 'allstop[gpu]') nor {PROGRAM}"
        return f"NVIDIA driver {have} is here, and neither {ways}"
    return ""


def lacking_torch() -> str:
    """Why PyTorch cannot use a GPU here; empty where it can."""
    if importlib.util.find_spec("torch") is None:
        return "PyTorch is not installed"
    # asked in a process of its own: one that has set CUDA up keeps its devices open
    asks = "import torch; print(torch.__version__, torch.cuda.is_available())"
    done = subprocess.run(
        [sys.executable, "-c", asks], capture_output=True, text=True, timeout=CHECK_S
    )
    version, _, can = done.stdout.strip().partition(" ")
    return "" if can == "True" else f"PyTorch {version or '(broken)'} finds no GPU"


def lacking_criu() -> str:
    """Why CRIU cannot be used here; empty where it can."""
    if os.geteuid() != 0:
        return "CRIU needs root"
    try:
        line = [str(find_criu()), "check", "--no-default-config"]
    except SetupError as error:
        return error.what
    done = subprocess.run(
        line, env=clean_environment(), capture_output=True, text=True, timeout=CHECK_S
    )
    words = (done.stderr + done.stdout).strip().splitlines()
    return "" if done.returncode == 0 else f"criu check: {words[-1] if words else done.returncode}"


async def here() -> Machine:
    """This machine; raises SetupError with what is missing."""
    if missing := lacking():
        raise SetupError(missing)
    return await seen(kernel_driver())


async def seen(driver: str, **programs: Sequence[str]) -> Machine:
    """The first GPU as NVML tells of it; raises SetupError where it does not."""
    inventory = await GpuInventory(CommandRunner()).look()
    if not inventory.gpus:
        raise SetupError(f"NVML finds no GPU: {inventory.trouble or 'none is there'}")
    first = inventory.gpus[0]
    return Machine(first.model, driver, first.memory_free_bytes, engines(), **programs)


def versions() -> dict[str, str]:
    """Of all that has a part in the figures."""
    found = {"kernel": platform.release(), "python": platform.python_version()}
    for package in PACKAGES:
        with suppress(importlib.metadata.PackageNotFoundError):
            found[package] = importlib.metadata.version(package)
    with suppress(SetupError):
        line = [str(find_criu()), "--version"]
        told = subprocess.run(line, capture_output=True, text=True, timeout=CHECK_S).stdout
        if match := re.search(r"Version:\s*(\S+)", told):
            found["criu"] = match[1]
    return found
