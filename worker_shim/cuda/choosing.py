"""Which way to the CUDA driver a node takes: the library where it can be, else the program."""

from __future__ import annotations

import importlib.util
import os
import shutil
from pathlib import Path

from coordinator.core.errors import SetupError
from worker_shim.cuda.devices import KERNEL_DRIVER
from worker_shim.cuda.library import LibraryCuda
from worker_shim.cuda.none import NoCuda
from worker_shim.cuda.port import CudaDriver
from worker_shim.cuda.program import ProgramCuda
from worker_shim.process.runner import Commands

PROGRAM = "cuda-checkpoint"
BINDINGS = "cuda.bindings"
AUTO, LIBRARY, PROGRAM_ENGINE, NONE = "auto", "library", "program", "none"
ENGINES = (AUTO, LIBRARY, PROGRAM_ENGINE, NONE)


def choose(engine: str, commands: Commands, *, driver: Path = KERNEL_DRIVER) -> CudaDriver:
    """The driver of that name, or with `auto` what is there; raises SetupError for one that is not.

    The library goes first: it attaches to the driver once, the program at every call, which takes
    seconds on a machine with many GPUs.
    """
    program, bindings = find_program(), _has_bindings()
    if engine == AUTO and not driver.exists():
        return NoCuda("this node has no NVIDIA driver")
    if engine == LIBRARY or (engine == AUTO and bindings):
        if not bindings:
            raise SetupError("cuda-bindings is not installed", advice="pip install 'allstop[gpu]'")
        return LibraryCuda()
    if engine == PROGRAM_ENGINE or (engine == AUTO and program is not None):
        if program is None:
            raise SetupError(f"there is no {PROGRAM} in PATH", advice="it comes with the driver")
        return ProgramCuda(commands, program)
    if engine == NONE:
        return NoCuda("GPU ranks were switched off with --gpu-engine none")
    return NoCuda(f"neither cuda-bindings (pip install 'allstop[gpu]') nor {PROGRAM} is there")


def find_program() -> str | None:
    """NVIDIA's program; also where its toolkit has it."""
    return shutil.which(PROGRAM, path=_path())


def _path() -> str:
    return f"{os.environ.get('PATH', os.defpath)}:/usr/local/cuda/bin"


def _has_bindings() -> bool:
    try:
        return importlib.util.find_spec(BINDINGS) is not None
    except ModuleNotFoundError:
        return False
