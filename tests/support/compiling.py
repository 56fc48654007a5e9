"""Compiling what tests write in C."""

from __future__ import annotations

import subprocess
from pathlib import Path

COMPILE_S = 60
STRICT = ("-Wall", "-Wextra", "-Werror", "-O1")
SHARED = ("-fPIC", "-shared")


def compiled(target: Path, source: Path, *options: str) -> Path:
    """Compile one file, whose warnings are errors; returns the target."""
    argv = ["gcc", *STRICT, "-o", str(target), str(source), *options]
    subprocess.run(argv, check=True, timeout=COMPILE_S)
    return target
