"""Compiling the stand-in for NCCL's checkpoint shim."""

from __future__ import annotations

from pathlib import Path

from tests.support.compiling import SHARED, compiled
from worker_shim.nccl.modes import SHIM_LIBRARY

SOURCE = Path(__file__).with_name("shim.c")


def build(into: Path) -> Path:
    """The library, under the name of the real one, in a folder."""
    return compiled(into / SHIM_LIBRARY, SOURCE, *SHARED, "-pthread")
