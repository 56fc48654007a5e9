"""What tests of the restore round share: a job to put back, and a look at how that stands."""

from __future__ import annotations

from coordinator.core.model import Failure, Phase, RestoreState
from tests.support.core_checks import answer_until, two_and_a_spare
from tests.support.core_world import World


def half_lost_world() -> World:
    """A job with a snapshot; the node of its second worker is lost, and there is a spare."""
    made = two_and_a_spare()
    made.checkpoint("llm", "a1")
    made.settle()
    made.lose("node-2", "power cut")
    return made


def until(world: World, phase: Phase) -> None:
    """Run a restore until the orders of a phase are out and nobody has answered them."""
    world.restore("llm", "r1", "a1")
    answer_until(world, phase)


def state(world: World, restore: str = "r1") -> RestoreState:
    record = world.control.restore(restore)
    assert record is not None
    return record.state


def incarnations(world: World) -> dict[str, list[int]]:
    return {n.name: [w.incarnation for w in n.workers.values()] for n in world.nodes.values()}


def failure(world: World, restore: str = "r1") -> Failure:
    """Why a restore has failed."""
    record = world.control.restore(restore)
    assert record is not None
    assert record.failure is not None
    return record.failure
