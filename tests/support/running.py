"""Harnesses that are run as commands, and what they must not leave behind."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def place() -> Iterator[Path]:
    """Where the run puts its directory: sockets want short paths."""
    with tempfile.TemporaryDirectory(prefix="allstop-test-", dir="/var/tmp") as directory:
        yield Path(directory)


def start(module: str, variable: str, place: Path, *options: str) -> subprocess.Popen[str]:
    """`python -m MODULE`; the variable tells it where its directory is to be."""
    return subprocess.Popen(
        [sys.executable, "-m", module, *options],
        cwd=ROOT,
        env={**os.environ, variable: str(place), "PYTHONPATH": f"{ROOT}:{ROOT / 'proto'}"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def traces(place: Path) -> dict[str, Any]:
    """What a run there must not leave behind, as this machine shows it now."""
    found = set()
    for process in Path("/proc").iterdir():
        if process.name.isdecimal():
            try:
                words = (process / "cmdline").read_bytes()
            except OSError:
                continue
            if os.fsencode(place) in words:
                found.add(process.name)
    return {"processes": found, "mounts": Path("/proc/self/mounts").read_text()}
