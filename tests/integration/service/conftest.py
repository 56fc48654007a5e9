"""`cluster(rounds)` gives three booted machines, whose plugs are pulled after the test."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from lab import Lab
from tests.integration.service.cluster import Cluster
from tests.integration.service.machine import SYSTEMD


@pytest.fixture
def cluster(make_lab: Callable[..., Lab], tmp_path: Path) -> Iterator[Callable[[int], Cluster]]:
    if not SYSTEMD.exists():
        pytest.skip(f"needs {SYSTEMD}")
    with contextlib.ExitStack() as stack:

        def boot(rounds: int) -> Cluster:
            made = Cluster(make_lab(["n0", "n1", "n2"]), tmp_path, rounds)
            stack.callback(made.close)
            made.start()
            return made

        yield boot
