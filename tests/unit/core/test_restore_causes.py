"""Every phase of a restore given up for every cause: who is told, when it is over, what is said."""

from collections.abc import Callable

import pytest

from coordinator.core import commands, events
from coordinator.core.model import Failure, Phase, RestoreRecord, RestoreState
from tests.support.core_checks import sent
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
Decided = list[commands.Command]
Cause = Callable[[World, Phase], Decided]


@pytest.fixture
def world() -> World:
    """Worker 0 is to be restored on node-1, worker 1 on the spare, node-3."""
    return half_lost_world()


# -- the causes: each is about worker 1 on node-3 --------------------------------------------------


def deadline(world: World, phase: Phase) -> Decided:
    world.answer(next(o for o in sent(world, phase) if o.worker == 0))
    world.orders = [o for o in world.orders if o.phase is not phase]
    world.now += getattr(world.policy, DEADLINES[phase])
    return world.event(events.TimePassed())


def death_of_a_rank(world: World, phase: Phase) -> Decided:
    return world.event(events.WorkerExited("node-3", "llm", 1, 2, -9, "Killed"))


def death_of_a_shim(world: World, phase: Phase) -> Decided:
    world.nodes["node-3"].attached = False
    world.orders = [o for o in world.orders if o.node != "node-3"]
    return world.event(events.NodeLost("node-3", "s1", "its stream broke"))


def failed_driver(world: World, phase: Phase) -> Decided:
    order = next(o for o in sent(world, phase) if o.worker == 1)
    world.orders.remove(order)
    place = (order.epoch, "node-3", "llm", 1, "r1", phase)
    return world.event(events.OrderFailed(*place, Failure("DriverError", "it said no")))


def timer_of_a_shim(world: World, phase: Phase) -> Decided:
    world.orders = [o for o in world.orders if o.node != "node-3"]
    world.nodes["node-3"].workers.clear()
    return world.event(events.Undone(world.epoch, "node-3", "llm", 1, "r1", 5000))


def operators_abort(world: World, phase: Phase) -> Decided:
    return world.event(events.AbortRequested("r1", "wrong job"))


ABOUT = {
    deadline: ("worker 1", "node-3"),
    death_of_a_rank: ("worker 1", "node-3", "signal 9"),
    death_of_a_shim: ("worker 1", "node-3", "its stream broke"),
    failed_driver: ("worker 1", "node-3", "it said no"),
    timer_of_a_shim: ("worker 1", "node-3", "its own timer"),
    operators_abort: ("wrong job",),
}
CELLS = [
    (phase, cause)
    for phase in DEADLINES
    for cause in ABOUT
    # nothing restored runs before RESTORE, so nothing can end
    if cause is not death_of_a_rank or phase in (Phase.RESTORE, Phase.RELEASE)
]


def name(value: object) -> str:
    return value.__name__ if callable(value) and not isinstance(value, str) else str(value)


def told(decided: Decided) -> set[tuple[str, int, bool]]:
    undo = [c for c in decided if isinstance(c, commands.SendOrder) and c.phase is Phase.UNDO]
    return {(o.node, o.worker, o.kill) for o in undo}


def record(world: World) -> RestoreRecord:
    found = world.control.restore("r1")
    assert found is not None
    return found


@pytest.mark.parametrize(("phase", "cause"), CELLS, ids=name)
def test_a_restore_is_given_up(world: World, phase: Phase, cause: Cause) -> None:
    until(world, phase)
    began = world.now
    decided = cause(world, phase)
    alive = {("node-1", 0, True)} if cause is death_of_a_shim else {
        ("node-1", 0, True),
        ("node-3", 1, True),
    }  # fmt: skip
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


@pytest.mark.parametrize(("phase", "cause"), CELLS, ids=name)
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
