"""All are back: networks are opened, that is recorded, and only then is anybody released."""

import pytest

from coordinator.core import events
from coordinator.core.model import (
    Failure,
    Phase,
    RestoreState,
)
from tests.support.core_checks import sent
from tests.support.core_restores import failure, half_lost_world, state, until
from tests.support.core_world import World

S = RestoreState


@pytest.fixture
def world() -> World:
    return half_lost_world()


def test_nothing_is_released_before_all_are_back(world: World) -> None:
    until(world, Phase.RESTORE)
    world.answer(sent(world, Phase.RESTORE)[0])
    assert not world.writes
    world.answer(sent(world, Phase.RESTORE)[0])
    assert not sent(world, Phase.RELEASE), "that comes when it is recorded"
    world.store()
    assert world.restores["r1"].state is S.RELEASING
    world.answer(sent(world, Phase.OPEN)[0])
    assert not sent(world, Phase.RELEASE), "the other one's network is not open yet"
    world.answer(sent(world, Phase.OPEN)[0])
    assert len(sent(world, Phase.RELEASE)) == 2


def test_networks_are_opened_while_the_release_is_recorded(world: World) -> None:
    until(world, Phase.RESTORE)
    world.answer_all(Phase.RESTORE)
    assert len(sent(world, Phase.OPEN)) == 2, "beside the write, not after it"
    world.answer_all(Phase.OPEN)
    assert not sent(world, Phase.RELEASE)
    world.store()
    assert len(sent(world, Phase.RELEASE)) == 2
    world.settle()
    assert state(world) is S.RUNNING


@pytest.mark.parametrize("recorded", [False, True])
def test_a_network_that_does_not_open_fails_the_restore(world: World, recorded: bool) -> None:
    until(world, Phase.RESTORE)
    world.answer_all(Phase.RESTORE)
    if recorded:
        world.store()
    world.answer(sent(world, Phase.OPEN)[0])
    world.tick(700)
    assert not sent(world, Phase.RELEASE)
    assert failure(world).kind == "DeadlinePassed"
    world.settle()
    assert state(world) is S.FAILED


def test_nothing_is_released_before_that_is_recorded(world: World) -> None:
    until(world, Phase.RESTORE)
    world.answer_all(Phase.RESTORE)
    world.writes.clear()
    world.event(events.StoreRefused("r1", Failure("StoreError", "etcd said no")))
    assert not sent(world, Phase.RELEASE)
    assert [(o.node, o.kill) for o in sent(world, Phase.UNDO)] == [
        ("node-1", True),
        ("node-3", True),
    ]
    world.settle()
    assert state(world) is S.FAILED


def test_nothing_is_released_once_a_hold_could_have_run_out(world: World) -> None:
    until(world, Phase.RESTORE)
    hold_s = sent(world, Phase.RESTORE)[0].hold_s
    world.answer_all(Phase.RESTORE)
    world.answer_all(Phase.OPEN)
    world.now += hold_s  # the coordinator stood still: no TimePassed was handed in
    world.store()
    assert not sent(world, Phase.RELEASE)
    assert "could have run out" in failure(world).what
