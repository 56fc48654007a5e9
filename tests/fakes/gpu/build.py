"""Compiling the driver and its program."""

from __future__ import annotations

from pathlib import Path

from tests.support.compiling import SHARED, compiled

HERE = Path(__file__).parent
LIBRARY = "libcuda.so.1"


def build(into: Path) -> Path:
    """`libcuda.so.1` and `cuda-checkpoint` in a folder; returns the program."""
    compiled(into / LIBRARY, HERE / "libcuda.c", *SHARED, f"-Wl,-soname,{LIBRARY}", "-ldl")
    linked = (f"-L{into}", f"-l:{LIBRARY}", f"-Wl,-rpath,{into}")
    return compiled(into / "cuda-checkpoint", HERE / "cuda_checkpoint.c", *linked)
