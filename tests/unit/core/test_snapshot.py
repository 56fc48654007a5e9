"""A snapshot is whole or there is none."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from coordinator.core.errors import BugError
from coordinator.core.model import Cut, Snapshot, WorkerRecord
from coordinator.core.snapshot import check_whole, digest_of
from tests.support.core_shims import Node, facts
from tests.support.core_world import World

Change = Callable[[tuple[WorkerRecord, ...]], tuple[WorkerRecord, ...]]


@pytest.fixture
def snapshot() -> Snapshot:
    """Of two workers with two ranks each."""
    world = World()
    for name in ("node-1", "node-2"):
        world.node(Node(facts(name)))
    world.start("llm", ["node-1", "node-2"], ranks=2)
    world.checkpoint("llm", "a1")
    world.settle()
    return world.snapshots["a1"]


def moved(workers: tuple[WorkerRecord, ...]) -> tuple[WorkerRecord, ...]:
    first = workers[0].ranks[0]
    ranks = (replace(first, boundary=first.boundary + 1), *workers[0].ranks[1:])
    return (replace(workers[0], ranks=ranks), workers[1])


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda w: w[:1], "has workers"),
        (lambda w: (w[0], w[0]), "has workers"),
        (lambda w: (w[0], replace(w[1], manifest_digest="")), "no manifest of workers"),
        (lambda w: (w[0], replace(w[1], ranks=w[1].ranks[:1])), "each of 4 ranks once"),
        (lambda w: (w[0], replace(w[1], ranks=w[0].ranks)), "each of 4 ranks once"),
        (moved, "are not at step 12"),
    ],
)
def test_what_is_not_whole_is_no_snapshot(snapshot: Snapshot, change: Change, words: str) -> None:
    check_whole(snapshot, 2)
    with pytest.raises(BugError, match=words):
        check_whole(replace(snapshot, workers=change(snapshot.workers)), 2)


def test_with_freeze_ranks_are_wherever_they_were(snapshot: Snapshot) -> None:
    check_whole(replace(snapshot, cut=Cut.FREEZE, workers=moved(snapshot.workers)), 2)


def test_the_digest_covers_every_manifest_in_any_order(snapshot: Snapshot) -> None:
    first, second = snapshot.workers
    assert digest_of((first, second)) == digest_of((second, first)) == snapshot.digest
    assert digest_of((first, replace(second, manifest_digest="other"))) != snapshot.digest
    swapped = (replace(first, worker=1), replace(second, worker=0))
    assert digest_of(swapped) != snapshot.digest
