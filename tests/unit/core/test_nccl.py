"""NCCL's communicators as the coordinator sees them: one mode for a job, and what an undo says."""

from __future__ import annotations

import pytest

from coordinator.core import events
from coordinator.core.model import Cut, Phase
from tests.support.core_checks import failure, sent, two_and_a_spare, until
from tests.support.core_world import World


def job_of(*modes: str, gpu: bool = True) -> World:
    """Two workers with these modes."""
    made = two_and_a_spare()
    for worker, mode in enumerate(modes):
        name = f"node-{worker + 1}"
        own = made.nodes[name].workers[("llm", worker)]
        own.nccl, own.gpu = mode, gpu and bool(mode)
        made.report(name)
    return made


# -- one mode for all ------------------------------------------------------------------------------


@pytest.mark.parametrize("modes", [("rebuild", "keep"), ("none", "rebuild"), ("keep", "none")])
@pytest.mark.parametrize("cut", [Cut.STEP, Cut.FREEZE])
def test_workers_of_different_modes_are_named(modes: tuple[str, str], cut: Cut) -> None:
    world = job_of(*modes)
    world.checkpoint("llm", "a1", cut=cut)
    refused = world.refused["a1"].failure
    assert refused.kind == "NotReady"
    assert f"{modes[0]} for worker 0; {modes[1]} for worker 1" in refused.what
    assert not world.orders


@pytest.mark.parametrize("modes", [("rebuild", "rebuild"), ("keep", ""), ("none", "none")])
def test_one_mode_is_none_too_few_and_a_worker_without_a_gpu_has_none(
    modes: tuple[str, str],
) -> None:
    world = job_of(*modes)
    world.checkpoint("llm", "a1")
    assert "a1" not in world.refused
    world.settle()


def test_a_worker_without_ranks_has_no_say() -> None:
    world = job_of("rebuild", "none")
    world.nodes["node-2"].workers[("llm", 1)].boundaries = {}
    world.report("node-2")
    world.checkpoint("llm", "a1")
    assert "a1" not in world.refused


# -- who is told to destroy them before it is let go -----------------------------------------------


def told(world: World) -> list[tuple[str, bool]]:
    return [(order.node, order.tear_down) for order in sent(world, Phase.UNDO)]


@pytest.mark.parametrize(
    ("mode", "gpu", "phase", "tears"),
    [
        ("rebuild", True, Phase.HOLD, False),
        ("rebuild", True, Phase.PARK, False),
        ("rebuild", True, Phase.GPU_LOCK, True),
        ("rebuild", True, Phase.GPU_SAVE, True),
        ("rebuild", True, Phase.DUMP, True),
        ("rebuild", False, Phase.DUMP, True),
        ("rebuild", True, Phase.PERSIST, False),
        ("keep", True, Phase.GPU_LOCK, False),
        ("", False, Phase.DUMP, False),
    ],
)
def test_once_some_may_have_begun_all_are_told_to(
    mode: str, gpu: bool, phase: Phase, tears: bool
) -> None:
    world = job_of(mode, mode, gpu=gpu)
    until(world, phase)
    order = sent(world, phase)[0]
    world.orders.remove(order)
    world.event(world.nodes["node-1"].fail(order, "it could not"))
    assert told(world) == [("node-1", tears), ("node-2", tears)]
    world.settle()


def test_who_was_out_of_reach_is_told_when_it_is_back_in_time() -> None:
    world = job_of("rebuild", "rebuild")
    until(world, Phase.GPU_LOCK)
    world.lose("node-2")
    assert told(world) == [("node-1", True)]
    world.attach("node-2")
    assert told(world) == [("node-1", True), ("node-2", True)]


def test_nobody_begins_for_one_that_was_let_go_and_the_operator_is_told_what_that_means() -> None:
    world = job_of("rebuild", "rebuild")
    until(world, Phase.GPU_LOCK)
    world.nodes["node-2"].workers[("llm", 1)].let_go()
    world.event(events.Undone(world.epoch, "node-2", "llm", 1, "a1", 5000))
    assert told(world) == [("node-1", False), ("node-2", False)]
    assert "where no step follows, restore the job" in failure(world).advice
    world.settle()
