"""The unmodified example without torchrun: a node is lost, and the bits stay the same."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from lab.demo.options import DemoOptions
from lab.demo.report import DemoReport
from lab.demo.run import run_demo

pytestmark = [
    pytest.mark.root,
    pytest.mark.criu,
    pytest.mark.etcd,
    pytest.mark.torch,
    pytest.mark.slow,
    pytest.mark.timeout(420),
]


@pytest.fixture
def place(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Outside of /tmp, of which every node of the demo has its own."""
    with tempfile.TemporaryDirectory(prefix="allstop-test-", dir="/var/tmp") as directory:
        monkeypatch.setenv("ALLSTOP_DEMO_DIRECTORY", directory)
        yield Path(directory)


def test_ranks_in_trees_of_their_own_come_back_bit_exact(place: Path) -> None:
    """Compared with the same ranks below torchrun, undisturbed and without allstop."""
    told: list[DemoReport] = []
    options = DemoOptions(
        own_trees=True, epochs=14, checkpoint_at=15, train_on=10, loader_workers=0
    )
    run_demo(options, print, told.append)
    (report,) = told
    assert report.bit_exact
    assert report.world_size == 4
    assert report.steps_repeated > 0
    moved = [(move.worker, move.from_node, move.to_node) for move in report.moved]
    assert moved == [(2, "node-1", "spare-0"), (3, "node-1", "spare-0")]
    assert report.connections_kept > 0
    assert not list(place.iterdir())
