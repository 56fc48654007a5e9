"""Which way to the CUDA driver a node takes: the library where it can be, else the program."""

from __future__ import annotations

import importlib.util
import os
import shutil
from pathlib import Path

from coordinator.core.errors import DriverError, SetupError
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
OPEN_S = 60.0  # attaching to the driver takes seconds on a machine with many GPUs


def choose(engine: str, commands: Commands, *, driver: Path = KERNEL_DRIVER) -> CudaDriver:
    """The driver of that name, or with `auto` what is there; raises SetupError for one that is not.

    Nothing is tried; see `opened`.
    """
    return _candidates(engine, commands, driver)[0]


async def opened(
    engine: str, commands: Commands, *, driver: Path = KERNEL_DRIVER, within_s: float = OPEN_S
) -> CudaDriver:
    """As `choose`, but tried, each for `within_s`; with `auto` what cannot be used is passed over.

    Where nothing can, it is one without an engine that says why. It keeps no device open until it
    is used: an idle node's GPUs can be reset. Raises SetupError for one that was wanted by name and
    cannot be used.
    """
    *usable, nothing = _candidates(engine, commands, driver)
    troubles: list[str] = []
    for each in usable:
        try:
            await each.open(deadline_s=within_s)
            return each
        except DriverError as error:
            if engine != AUTO:
                told = f"GPU state cannot be saved through the {engine}: {error.what}"
                raise SetupError(told, advice=error.advice, details=error.details) from None
            troubles.append(f"{each.engine}: {error.what}")
        finally:
            await each.close()
    return NoCuda("; ".join(troubles)) if troubles else nothing


def _candidates(engine: str, commands: Commands, driver: Path) -> tuple[CudaDriver, ...]:
    """What could be used, the best first, and at the end what can do nothing and says why.

    The library goes first: it attaches to the driver once, the program at every call, which takes
    seconds on a machine with many GPUs.
    """
    if engine == NONE:
        return (NoCuda("GPU ranks were switched off with --gpu-engine none"),)
    if engine == AUTO and not driver.exists():
        return (NoCuda("this node has no NVIDIA driver"),)
    program, bindings = find_program(), _has_bindings()
    if engine == LIBRARY and not bindings:
        raise SetupError("cuda-bindings is not installed", advice="pip install 'allstop[gpu]'")
    if engine == PROGRAM_ENGINE and program is None:
        raise SetupError(f"there is no {PROGRAM} in PATH", advice="it comes with the driver")
    found: list[CudaDriver] = []
    if bindings and engine in (AUTO, LIBRARY):
        found.append(LibraryCuda())
    if program is not None and engine in (AUTO, PROGRAM_ENGINE):
        found.append(ProgramCuda(commands, program))
    why = f"neither cuda-bindings (pip install 'allstop[gpu]') nor {PROGRAM} is there"
    return (*found, NoCuda(why))


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
