"""An unfinished restore of an earlier leader: the next one looks before it kills."""

import pytest

from coordinator.core.model import Phase, RestoreState
from tests.support.core_checks import sent
from tests.support.core_restores import half_lost_world, incarnations, state, until
from tests.support.core_world import World

S = RestoreState


@pytest.fixture
def world() -> World:
    return half_lost_world()


@pytest.mark.parametrize("order", [("node-1", "node-3"), ("node-3", "node-1")])
def test_a_new_leader_leaves_a_restored_job_running(world: World, order: tuple[str, str]) -> None:
    until(world, Phase.RELEASE)
    world.store()
    world.answer_all(Phase.RELEASE)
    assert str(world.restores["r1"].state) == "CLEARING", "the last record is on its way, and lost"
    for name in order:
        world.nodes[name].attached = False
    world.new_leader()
    for name in order:
        assert state(world) is S.FAILING
        world.attach(name)
        assert not sent(world, Phase.UNDO)
    assert state(world) is S.RUNNING
    world.settle()
    assert world.restores["r1"].state is S.RUNNING
    assert world.restores["r1"].failure is None
    assert incarnations(world) == {"node-1": [2], "node-2": [1], "node-3": [2]}
    view = world.control.jobs()[0]
    assert (view.state, view.nodes) == ("running", ("node-1", "node-3"))
    world.checkpoint("llm", "a2")
    world.settle()
    assert world.snapshots["a2"].incarnation == 2


def test_a_new_leader_clears_away_a_restore_that_was_released_in_part(world: World) -> None:
    until(world, Phase.RELEASE)
    world.store()
    world.answer(sent(world, Phase.RELEASE)[0])
    world.new_leader()
    assert [(o.node, o.kill) for o in sent(world, Phase.UNDO)] == [("node-3", True)]
    world.settle()
    assert state(world) is S.FAILED
    assert incarnations(world) == {"node-1": [], "node-2": [1], "node-3": []}
