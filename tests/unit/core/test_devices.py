"""Barriers of the GPU phases: nobody's device is touched before everyone is as far."""

from __future__ import annotations

import pytest

from coordinator.core.model import AttemptState, Cut, Phase, RestoreState
from tests.support import core_restores
from tests.support.core_checks import state, two_and_a_spare, until
from tests.support.core_invariants import Invariants
from tests.support.core_world import World

OF_CHECKPOINT = (Phase.PARK, Phase.GPU_LOCK, Phase.GPU_SAVE, Phase.DUMP)
OF_RESTORE = (Phase.RESTORE, Phase.GPU_RESTORE, Phase.GPU_UNLOCK, Phase.RELEASE)


@pytest.fixture
def world() -> World:
    """Two nodes with one worker each, which have devices, and a spare."""
    made = two_and_a_spare()
    Invariants(made)
    for name in ("node-1", "node-2"):
        for worker in made.nodes[name].workers.values():
            worker.gpu = True
        made.report(name)
    return made


def one_by_one(world: World, phases: tuple[Phase, ...]) -> None:
    """Answer each phase a node at a time; only the second answer brings the next phase."""
    for phase, nxt in zip(phases, (*phases[1:], None), strict=True):
        world.store()
        first, second = [order for order in world.orders if order.phase is phase]
        world.answer(first)
        assert {order.phase for order in world.orders} == {phase}
        world.answer(second)
        world.store()
        assert nxt is None or {order.phase for order in world.orders} == {nxt}


@pytest.mark.parametrize("cut", list(Cut))
def test_every_device_is_locked_before_one_is_saved_and_saved_before_a_dump(
    world: World, cut: Cut
) -> None:
    phases = OF_CHECKPOINT if cut is Cut.STEP else OF_CHECKPOINT[1:]
    until(world, phases[0], cut=cut)
    one_by_one(world, phases[:-1])
    world.settle()
    assert state(world) is AttemptState.COMMITTED


def test_every_device_is_restored_before_one_is_unlocked(world: World) -> None:
    until(world, Phase.HOLD)
    world.settle()
    world.restore("llm", "r1", "a1")
    for phase in (Phase.FETCH, Phase.CLEAR):
        world.store()
        world.answer_all(phase)
    one_by_one(world, OF_RESTORE[:-1])
    world.settle()
    assert core_restores.state(world) is RestoreState.RUNNING
    assert all(w.gpu for n in world.nodes.values() for w in n.workers.values())


def test_a_kill_has_the_time_to_take_processes_off_their_devices(world: World) -> None:
    off_s = world.policy.gpu_lock_s + world.policy.gpu_save_s
    until(world, Phase.HOLD, stop=True)
    for phase in (Phase.HOLD, *OF_CHECKPOINT, Phase.PERSIST):
        world.answer_all(phase)
        world.store()
    stops = [order.deadline_s for order in world.orders if order.phase is Phase.STOP]
    assert stops == [world.policy.stop_s + off_s] * 2
    world.settle()
    for name in ("node-1", "node-2"):
        world.report(name)
    world.restore("llm", "r1", "a1")
    world.store()
    world.answer_all(Phase.FETCH)
    world.store()
    clears = [order.deadline_s for order in world.orders if order.phase is Phase.CLEAR]
    assert clears
    assert set(clears) == {world.policy.clear_s + off_s}
