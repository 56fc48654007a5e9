"""The proof's harness plays a real run: a node is lost, and what is counted is what happened."""

from __future__ import annotations

import pytest

from bench.recovery.allstop_policy import Allstop
from bench.recovery.playing import play
from bench.recovery.schedule import Kill
from bench.recovery.torchrun_alone import Plain

EPOCHS = 15

pytestmark = [
    pytest.mark.root,
    pytest.mark.criu,
    pytest.mark.etcd,
    pytest.mark.torch,
    pytest.mark.slow,
    pytest.mark.alone,
    pytest.mark.timeout(240),
]


def test_a_node_is_lost_and_the_bits_are_the_same(criu_path: str) -> None:
    plain = play(Plain(), [], seed=0, epochs=EPOCHS)
    assert plain.finished, plain.why
    assert plain.recoveries == []
    assert plain.stopped_s == 0.0

    run = play(Allstop(2.0), [Kill(2.0, 0)], seed=0, epochs=EPOCHS)
    assert run.finished, run.why
    assert run.digest == plain.digest
    (found,) = run.recoveries
    assert found.node == "n0"
    assert 0 < found.first_step <= found.last_step + 1
    assert found.repeated == found.last_step - found.first_step + 1
    assert 0 < found.resumed_s <= found.new_s < run.wall_s
    assert run.checkpoints
    assert run.stopped_s > 0.0
    assert run.course[-1][1] == EPOCHS * 23
