"""Restores that fail: what counts against the snapshot, and which nodes are taken last then."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from coordinator.core import events
from coordinator.core.blame import Blame, blame
from coordinator.core.errors import StoreAway
from coordinator.core.job_policy import RecoveryState
from coordinator.core.model import Failure, Phase, RestoreState
from tests.support.core_checks import answer_until
from tests.support.core_recovery import POLICY, back, crash, recovery, saved, serve, story, watched
from tests.support.core_shims import Node, facts
from tests.support.core_world import World

S = RecoveryState
ONCE = replace(POLICY, tries=1)


@pytest.fixture
def world() -> World:
    """Snapshots a1 and a2, two spares, and one try for each snapshot."""
    made = watched(ONCE)
    made.node(Node(facts("node-4")))
    saved(made, "a2", 40)
    return made


def asked(world: World) -> None:
    """Wait until a restore is asked for, and hand it in."""
    for _ in range(70):
        if world.wanted:
            break
        world.tick(1.0)
    serve(world)


def fails(world: World, node: str, phase: Phase, what: str = "no room", kind: str = "") -> None:
    """What this node is ordered in a phase of the restore fails."""
    answer_until(world, phase)
    order = next(o for o in world.orders if o.phase is phase and o.node == node)
    world.orders.remove(order)
    told = world.nodes[node].fail(order, what)
    world.event(replace(told, failure=replace(told.failure, kind=kind or told.failure.kind)))
    world.settle()
    assert world.control.restores()[-1].state is RestoreState.FAILED


def places(world: World) -> dict[int, str]:
    plan = world.control.restores()[-1].plan
    return {each.worker: each.to_node for each in plan.placements}


@pytest.mark.parametrize("phase", [Phase.FETCH, Phase.RESTORE])
def test_a_spare_where_it_fails_is_not_taken_again_while_there_is_another(
    world: World, phase: Phase
) -> None:
    world.lose("node-2")
    asked(world)
    fails(world, "node-3", phase)
    assert recovery(world).failed_on == ("node-3",)
    asked(world)
    assert places(world) == {0: "node-1", 1: "node-4"}
    world.settle()
    world.tick(2.0)
    assert recovery(world).state is S.WATCHING
    assert {r.snapshot for r in world.control.restores()} == {"a2"}
    assert "failed, perhaps of node-3: no room" in story(world)
    saved(world, "a3", 60)
    assert recovery(world).failed_on == ()


def test_a_new_leader_knows_where_it_failed(world: World) -> None:
    world.lose("node-2")
    asked(world)
    fails(world, "node-3", Phase.FETCH)
    world.new_leader()
    world.tick(world.policy.adopt_s)
    asked(world)
    assert places(world) == {0: "node-1", 1: "node-4"}


def test_what_fails_on_two_nodes_is_held_against_the_snapshot(world: World) -> None:
    world.lose("node-2")
    asked(world)
    fails(world, "node-3", Phase.RESTORE)
    asked(world)
    fails(world, "node-4", Phase.RESTORE)
    assert recovery(world).skipped == ("a2",)
    back(world)
    assert world.control.restores()[-1].snapshot == "a1"
    assert recovery(world).state is S.WATCHING


def test_where_there_is_no_other_node_it_is_tried_there_again(world: World) -> None:
    world.lose("node-4", politely=True)
    world.lose("node-2")
    asked(world)
    fails(world, "node-3", Phase.RESTORE)
    asked(world)
    assert places(world) == {0: "node-1", 1: "node-3"}
    fails(world, "node-3", Phase.RESTORE)
    assert recovery(world).skipped == ("a2",)
    assert recovery(world).failed_on == ("node-3", "node-3")


def test_a_survivor_where_it_fails_is_avoided_too(world: World) -> None:
    world.lose("node-2")
    asked(world)
    fails(world, "node-1", Phase.RESTORE)
    asked(world)
    assert places(world) == {0: "node-3", 1: "node-4"}
    (placed,) = [p for p in world.control.restores()[-1].plan.placements if p.worker == 0]
    assert "node-1 cannot take it (a restore failed there just now)" in placed.why


def aborted(world: World) -> None:
    answer_until(world, Phase.FETCH)
    world.event(events.AbortRequested(world.control.restores()[-1].restore, "enough"))


def store_refused(world: World) -> None:
    world.writes.clear()
    name = world.control.under_way()[0]
    world.event(events.StoreRefused(name, Failure("StoreError", "no room in etcd")))


def leader_dead(world: World) -> None:
    answer_until(world, Phase.FETCH)
    world.new_leader()


def images_away(world: World) -> None:
    fails(world, places(world)[1], Phase.FETCH, "it is not mounted", StoreAway.__name__)


def images_slow(world: World) -> None:
    answer_until(world, Phase.FETCH)
    world.tick(world.policy.fetch_s)


@pytest.mark.parametrize("trouble", [aborted, store_refused, leader_dead, images_away, images_slow])
def test_what_says_nothing_of_the_snapshot_is_no_try_of_it(
    world: World, trouble: Callable[[World], None]
) -> None:
    crash(world)
    for _ in range(3):
        asked(world)
        trouble(world)
        world.settle()
        world.tick(world.policy.adopt_s if trouble is leader_dead else 0.0)
        assert recovery(world).state is S.RECOVERING
    assert (recovery(world).tries, recovery(world).skipped) == (0, ())
    back(world)
    assert recovery(world).state is S.WATCHING
    assert {r.snapshot for r in world.control.restores()} == {"a2"}
    assert "and not of its snapshot" in story(world)


def test_an_image_store_that_stays_away_is_waited_for_only_so_long(world: World) -> None:
    world.event(events.PolicyChanged(replace(ONCE, wait_s=30.0)))
    crash(world)
    for _ in range(40):
        asked(world)
        images_away(world)
        if recovery(world).skipped:
            break
    assert recovery(world).skipped == ("a2",)
    assert len(world.control.restores()) > 10


@pytest.mark.parametrize(
    ("failure", "attached", "expected"),
    [
        (None, True, Blame()),
        (Failure("RestoreFailed", "aborted on request"), True, Blame(snapshot=False)),
        (Failure("DeadlinePassed", "awaited the store", phase="ADMIT"), True, Blame(False)),
        (Failure("StoreError", "", node="n"), True, Blame(snapshot=False)),
        (Failure("Damaged", "", worker=1, node="n"), True, Blame()),
        (Failure("RestoreFailed", "", worker=1, node="n"), False, Blame(False, lost=True)),
        (Failure("StoreAway", "", worker=1, node="n"), True, Blame(False, "n")),
        (Failure("DeadlinePassed", "", worker=1, node="n", phase="FETCH"), True, Blame(False, "n")),
        (Failure("DeadlinePassed", "", worker=1, node="n", phase="CLEAR"), True, Blame(False, "n")),
        (Failure("DriverError", "", worker=1, node="n"), True, Blame(True, "n")),
    ],
)
def test_blame(failure: Failure | None, attached: bool, expected: Blame) -> None:
    assert blame(failure, lambda node: attached) == expected
