"""A folder with device files, and programs that use them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.compatibility.kit import DEVICES, Look, Programs, Start, judged
from worker_shim.compatibility.node import NodeSight
from worker_shim.compatibility.situation import Situation
from worker_shim.process import proc
from worker_shim.process.view import view


@pytest.fixture
def devices(tmp_path: Path) -> str:
    """Files that stand where device files would, a page each; what their paths begin with."""
    for name in DEVICES:
        path = tmp_path / "dev" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(bytes(4096))
    return f"{tmp_path}/dev/"


@pytest.fixture
def start(tmp_path: Path, devices: str) -> Iterator[Start]:
    """Run a program to the end of its preparation."""
    programs = Programs(tmp_path, devices)
    yield programs.start
    programs.end()


@pytest.fixture
def look(start: Start, devices: str) -> Look:
    """The situation of a program that runs."""

    def run(program: str, node: NodeSight | None = None, **settings: str) -> Situation:
        seen = view(proc.look(start(program, **settings).pid))
        return judged(seen, node or NodeSight("x86_64"), devices)

    return run
