"""Every phase of a restore given up for every cause: who is told, when it is over, what is said."""

import pytest

from coordinator.core.model import Phase, RestoreRecord, RestoreState
from tests.support.core_causes import Cause, Causes, name_of, told
from tests.support.core_invariants import check_ends
from tests.support.core_restores import half_lost_world, state, until
from tests.support.core_world import World

S = RestoreState
DEADLINES = {
    Phase.FETCH: "fetch_s",
    Phase.CLEAR: "clear_s",
    Phase.RESTORE: "rebuild_s",
    Phase.RELEASE: "release_s",
}


@pytest.fixture
def world() -> World:
    """Worker 0 is to be restored on node-1, worker 1 on the spare, node-3."""
    return half_lost_world()


CAUSES = Causes("r1", "node-3", 2, DEADLINES, lambda world: world.nodes["node-3"].workers.clear())
ABOUT = {
    CAUSES.deadline: ("worker 1", "node-3"),
    CAUSES.death_of_a_rank: ("worker 1", "node-3", "signal 9"),
    CAUSES.death_of_a_shim: ("worker 1", "node-3", "its stream broke"),
    CAUSES.failed_driver: ("worker 1", "node-3", "it said no"),
    CAUSES.timer_of_a_shim: ("worker 1", "node-3", "its own timer"),
    CAUSES.operators_abort: ("wrong job",),
}
CELLS = [
    (phase, cause)
    for phase in DEADLINES
    for cause in ABOUT
    # nothing restored runs before RESTORE, so nothing can end
    if cause != CAUSES.death_of_a_rank or phase in (Phase.RESTORE, Phase.RELEASE)
]


def record(world: World) -> RestoreRecord:
    found = world.control.restore("r1")
    assert found is not None
    return found


@pytest.mark.parametrize(("phase", "cause"), CELLS, ids=name_of)
def test_a_restore_is_given_up(world: World, phase: Phase, cause: Cause) -> None:
    until(world, phase)
    began = world.now
    decided = cause(world, phase)
    alive = {("node-1", 0, True)}
    if cause != CAUSES.death_of_a_shim:
        alive.add(("node-3", 1, True))
    assert told(decided) == alive
    assert state(world) is S.FAILING
    world.tick(world.policy.undo_s)  # nobody answers
    assert state(world) is S.FAILED
    assert world.now - began <= getattr(world.policy, DEADLINES[phase]) + world.policy.undo_s
    reason = record(world).reason
    assert reason.startswith(f"given up in {phase}: ")
    assert all(text in reason for text in ABOUT[cause]), reason
    assert "the snapshot is untouched" in reason
    assert record(world).owed == (0, 1)


@pytest.mark.parametrize(("phase", "cause"), CELLS, ids=name_of)
def test_nothing_of_it_is_left_and_the_next_one_can_run(
    world: World, phase: Phase, cause: Cause
) -> None:
    until(world, phase)
    cause(world, phase)
    world.settle()
    assert state(world) is S.FAILED
    world.tick(1000)
    for node in ("node-3", "node-2"):
        world.attach(node, new_session=True)
        world.settle()
    for node in world.nodes:
        world.report(node)
    world.settle()
    check_ends(world)
    assert world.restores["r1"].owed == ()
    runs = {w.incarnation for n in world.nodes.values() for w in n.workers.values()}
    assert runs <= {2}, "nothing of an older incarnation, and what was not cleared is the job"
    world.restore("llm", "r2", "a1")
    world.settle()
    assert state(world, "r2") is S.RUNNING
    check_ends(world)
