"""What is known of GPUs: fresh or from before, counted once, and over when they were reset."""

from __future__ import annotations

import pytest

from coordinator.core.health_records import GpuTrouble, TroubleKind
from worker_shim.health.troubles import FRESH_S, KEPT_MAX, Counters, Troubles

A = "GPU-a"
K = TroubleKind


class Node:
    """Troubles under a clock that is turned."""

    def __init__(self) -> None:
        self.now, self.changes = 100.0, 0
        self.troubles = Troubles(self.changed, lambda: self.now)
        self.look()

    def changed(self) -> None:
        self.changes += 1

    def look(self, source: str = "nvml", **counters: object) -> None:
        said = {"lost": False, "ecc": 0, "remap_pending": False, "remap_failed": False, **counters}
        self.troubles.looked(Counters(A, 0, **said), source)  # type: ignore[arg-type]

    def told(self) -> list[tuple[TroubleKind, int, int, bool]]:
        return [(t.kind, t.code, t.count, t.fresh) for t in self.troubles.now()]


@pytest.fixture
def node() -> Node:
    """A GPU that is well."""
    return Node()


@pytest.mark.parametrize(
    ("counters", "kind", "code", "count"),
    [
        ({"ecc": 3}, K.ECC, 0, 3),
        ({"remap_pending": True}, K.REMAP_PENDING, 0, 1),
        ({"remap_failed": True}, K.REMAP_FAILED, 0, 1),
        ({"lost": True}, K.LOST, 0, 1),
        ({"recovery": 4}, K.RECOVERY, 4, 1),
    ],
)
def test_what_the_counters_say_is_fresh_once_it_comes_later(
    node: Node, counters: dict[str, object], kind: TroubleKind, code: int, count: int
) -> None:
    node.look(**counters)
    assert node.told() == [(kind, code, count, True)]
    node.look(**counters)
    assert (len(node.told()), node.changes) == (1, 1), "nothing new is no news"
    first = Troubles()
    first.looked(Counters(A, 0, **counters), "nvml")  # type: ignore[arg-type]
    assert [t.fresh for t in first.now()] == [False], "it was there before this shim"


def test_it_is_fresh_for_a_while_after_a_leader_was_told(node: Node) -> None:
    node.troubles.xid(A, 0, 79, "nvml")
    node.now += 10 * FRESH_S
    assert node.told() == [(K.XID, 79, 1, True)], "nobody has heard of it yet"
    node.troubles.told()
    node.now += FRESH_S / 2
    node.troubles.told()
    assert node.told()[0][3]
    node.now += FRESH_S
    assert not node.told()[0][3]
    node.troubles.xid(A, 0, 79, "nvml")
    assert node.told() == [(K.XID, 79, 2, True)], "once more"


def test_more_errors_are_fresh_again(node: Node) -> None:
    node.look(ecc=1)
    node.troubles.told()
    node.now += 2 * FRESH_S
    node.look(ecc=2)
    assert node.told() == [(K.ECC, 0, 2, True)]


def test_a_gpu_that_was_reset_has_had_nothing(node: Node) -> None:
    node.look(ecc=2)
    node.troubles.xid(A, 0, 48, "nvml")
    node.troubles.xid("GPU-b", 1, 48, "nvml")
    node.look(ecc=0)
    assert [t.uuid for t in node.troubles.now()] == ["GPU-b"]


def test_a_lost_gpu_that_answers_again_was_reset(node: Node) -> None:
    node.troubles.xid(A, 0, 79, "nvml")
    node.look(lost=True)
    node.look(lost=False)
    assert node.told() == []


def test_flags_go_as_they_came(node: Node) -> None:
    node.look(remap_pending=True, recovery=1)
    node.look(remap_pending=False, recovery=4)
    assert node.told() == [(K.RECOVERY, 4, 1, True)]
    node.look(recovery=0)
    assert node.told() == []


def test_what_two_sources_see_is_one_trouble(node: Node) -> None:
    node.troubles.looked(Counters(A, 5, ecc=0), "dcgm")  # it counts GPUs otherwise
    node.look(ecc=2)
    node.troubles.looked(Counters(A, 5, ecc=2), "dcgm")
    node.troubles.xid(A, 0, 79, "nvml")
    node.troubles.xid(A, 5, 79, "dcgm")
    assert node.told() == [(K.ECC, 0, 2, True), (K.XID, 79, 1, True)]
    node.troubles.looked(Counters(A, 5, remap_pending=False), "dcgm")
    node.look(ecc=2, remap_pending=True)
    node.troubles.looked(Counters(A, 5, remap_pending=False), "dcgm")
    assert len(node.told()) == 3, "who did not see it does not take it back"


def test_a_source_that_comes_later_makes_nothing_stale(node: Node) -> None:
    node.look(ecc=2)
    node.troubles.looked(Counters(A, 0, ecc=3), "dcgm")
    assert node.told() == [(K.ECC, 0, 3, True)]


def test_no_more_is_kept_than_can_be_told() -> None:
    troubles = Troubles()
    for code in range(KEPT_MAX + 10):
        troubles.xid(A, 0, code, "nvml")
    now = troubles.now()
    assert (len(now), now[-1]) == (
        KEPT_MAX, GpuTrouble(A, 0, K.XID, KEPT_MAX + 9, 1, "nvml", True),
    )  # fmt: skip
