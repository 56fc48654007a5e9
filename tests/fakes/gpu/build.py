"""Compiling the driver and its program."""

from __future__ import annotations

import subprocess
from pathlib import Path

HERE = Path(__file__).parent
COMPILE_S = 60


def build(into: Path) -> Path:
    """`libcuda.so.1` and `cuda-checkpoint` in a folder; returns the program."""
    library, program = into / "libcuda.so.1", into / "cuda-checkpoint"
    common = ["gcc", "-Wall", "-Wextra", "-Werror", "-O1"]
    shared = [*common, "-fPIC", "-shared", "-Wl,-soname,libcuda.so.1", "-o", str(library)]
    linked = [*common, "-o", str(program), str(HERE / "cuda_checkpoint.c")]
    for argv in (
        [*shared, str(HERE / "libcuda.c"), "-ldl"],
        [*linked, f"-L{into}", "-l:libcuda.so.1", f"-Wl,-rpath,{into}"],
    ):
        subprocess.run(argv, check=True, timeout=COMPILE_S)
    return program
