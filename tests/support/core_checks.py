"""Small words for tests of attempts: bring one to a phase, and look at it."""

from coordinator.core import commands
from coordinator.core.model import AttemptState, Failure, Phase
from tests.support.core_shims import Node, facts
from tests.support.core_world import World

BEFORE_CUT = (Phase.HOLD, Phase.PARK, Phase.DUMP)


def two_and_a_spare() -> World:
    """Two nodes with one worker of two ranks each, and a spare."""
    made = World()
    for name in ("node-1", "node-2", "node-3"):
        made.node(Node(facts(name)))
    made.start("llm", ["node-1", "node-2"], ranks=2)
    return made


def until(world: World, phase: Phase, attempt: str = "a1", **how: object) -> None:
    """Run an attempt until the orders of a phase are out and nobody has answered them."""
    world.checkpoint("llm", attempt, **how)  # type: ignore[arg-type]
    answer_until(world, phase)


def answer_until(world: World, phase: Phase) -> None:
    """Store and answer everything until the orders of a phase are out."""
    for _ in range(10):
        if any(o.phase is phase for o in world.orders):
            return
        world.store()
        if not any(o.phase is phase for o in world.orders):
            world.answer_all()
    raise AssertionError(f"{phase} never came")


def state(world: World, attempt: str = "a1") -> AttemptState:
    record = world.control.attempt(attempt)
    assert record is not None
    return record.state


def failure(world: World, attempt: str = "a1") -> Failure:
    record = world.control.attempt(attempt)
    assert record is not None
    assert record.failure is not None
    return record.failure


def sent(world: World, phase: Phase) -> list[commands.SendOrder]:
    return [o for o in world.orders if o.phase is phase]


def running(world: World) -> bool:
    workers = [w for n in world.nodes.values() for w in n.workers.values()]
    return all(w.held_by == "" and w.state == "running" for w in workers)


def snap(world: World) -> object:
    return (world.control.attempts(), world.control.jobs(), world.control.next_wakeup())
