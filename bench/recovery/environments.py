"""Virtual environments of other people's packages: made once, below `.tools/bench`.

torch is pinned to the project's own, so that all contenders compute with the same code. A package
that cannot be installed, or imported, is no failure of the bench: its rows say why.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence

from bench.recovery.contender import environments, python
from coordinator.core.errors import SetupError

COMMON = ("torch==2.13.0", "scikit-learn==1.9.1", "numpy==2.4.6")
INSTALL_TIMEOUT_S = 900.0
CHECK_TIMEOUT_S = 120.0
TAIL_CHARS = 600


def make(name: str, packages: Sequence[str], check: str) -> None:
    """Make the environment `name` with `packages`, unless `check` (a line of Python) works there.

    Takes minutes and about a gigabyte the first time. Raises SetupError with pip's or Python's own
    words. A crash half-way leaves an environment that the next call completes.
    """
    program = python(name)
    if program.exists() and not _run([str(program), "-c", check], CHECK_TIMEOUT_S):
        return
    environments().mkdir(parents=True, exist_ok=True)
    pip = [str(program), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    for argv in (
        [sys.executable, "-m", "venv", str(environments() / name)],
        [*pip, *packages, *COMMON],
        [str(program), "-c", check],
    ):
        if words := _run(argv, INSTALL_TIMEOUT_S):
            raise SetupError(f"{' '.join(packages)} cannot run here: {words}")


def _run(argv: Sequence[str], timeout_s: float) -> str:
    """Empty when it went well; else its last words."""
    try:
        done = subprocess.run(argv, capture_output=True, text=True, timeout=timeout_s)
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error)
    if done.returncode == 0:
        return ""
    return (done.stderr or done.stdout).strip()[-TAIL_CHARS:] or f"exit {done.returncode}"
