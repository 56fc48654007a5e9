"""A short run of the bench of lost nodes: one is lost and comes back empty, and all is counted."""

from __future__ import annotations

import pytest

from bench.recovery.contender import Stage
from bench.recovery.playing import play
from bench.recovery.schedule import Kill
from bench.recovery.torchrun_alone import TorchrunAlone

pytestmark = [
    pytest.mark.root,
    pytest.mark.torch,
    pytest.mark.slow,
    pytest.mark.timeout(300),
]

EPOCHS = 12
STEPS = EPOCHS * 23


class Watched(TorchrunAlone):
    """Notes what is on the disk of a node that comes back."""

    def __init__(self) -> None:
        super().__init__(save_every=1)
        self.left: list[str] = []
        self.found: list[list[str]] = []

    def lost(self, stage: Stage, node: str) -> None:
        (stage.host(node).disk / "left").write_text("by the machine before")
        self.left.append(node)

    def returned(self, stage: Stage, node: str) -> None:
        if node in self.left:
            self.found.append([path.name for path in stage.host(node).disk.iterdir()])
        super().returned(stage, node)


def test_a_node_is_lost_under_torchrun() -> None:
    contender = Watched()
    run = play(contender, [Kill(2.0, 0)], seed=1, epochs=EPOCHS)
    assert run.finished, run.why
    (back,) = run.recoveries
    assert back.node in contender.left
    assert contender.found == [[]]
    assert 0 < back.first_step <= back.last_step + 1
    assert back.new_s >= back.resumed_s > 0
    assert run.checkpoints[-1] == STEPS
    assert run.stopped_s < back.resumed_s
    assert run.course[-1][1] == STEPS
    assert run.digest
