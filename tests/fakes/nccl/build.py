"""Compiling the stand-in for NCCL's checkpoint shim."""

from __future__ import annotations

import subprocess
from pathlib import Path

from worker_shim.nccl.modes import SHIM_LIBRARY

SOURCE = Path(__file__).with_name("shim.c")
COMPILE_S = 60


def build(into: Path) -> Path:
    """The library, under the name of the real one, in a folder."""
    library = into / SHIM_LIBRARY
    options = ["-Wall", "-Wextra", "-Werror", "-O1", "-fPIC", "-shared", "-pthread"]
    subprocess.run(
        ["gcc", *options, "-o", str(library), str(SOURCE)], check=True, timeout=COMPILE_S
    )
    return library
