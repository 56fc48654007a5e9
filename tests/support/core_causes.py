"""The causes for which an attempt or a restore is given up, the same in each of its phases."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from coordinator.core import commands, events
from coordinator.core.model import Failure, Phase
from tests.support.core_checks import sent
from tests.support.core_world import World

Decided = list[commands.Command]
Cause = Callable[[World, Phase], Decided]


class Causes:
    """Each method is a cause about worker 1, and hands back what the core decided then."""

    def __init__(
        self,
        action: str,
        node: str,
        incarnation: int,
        deadlines: Mapping[Phase, str],
        let_go: Callable[[World], None],
    ) -> None:
        """Worker 1 is on `node`; `let_go` is what its shim's own timer does there."""
        self.action = action
        self.node = node
        self.incarnation = incarnation
        self.deadlines = deadlines
        self.let_go = let_go

    def deadline(self, world: World, phase: Phase) -> Decided:
        """Worker 0 answers, worker 1 does not."""
        world.answer(next(o for o in sent(world, phase) if o.worker == 0))
        world.orders = [o for o in world.orders if o.phase is not phase]
        world.now += getattr(world.policy, self.deadlines[phase])
        return world.event(events.TimePassed())

    def death_of_a_rank(self, world: World, phase: Phase) -> Decided:
        gone = events.WorkerExited(self.node, "llm", 1, self.incarnation, -9, "Killed")
        return world.event(gone)

    def death_of_a_shim(self, world: World, phase: Phase) -> Decided:
        world.nodes[self.node].attached = False
        self._lose_orders(world)
        return world.event(events.NodeLost(self.node, "s1", "its stream broke"))

    def failed_driver(self, world: World, phase: Phase) -> Decided:
        order = next(o for o in sent(world, phase) if o.worker == 1)
        world.orders.remove(order)
        place = (order.epoch, self.node, "llm", 1, self.action, phase)
        return world.event(events.OrderFailed(*place, Failure("DriverError", "it said no", rank=2)))

    def timer_of_a_shim(self, world: World, phase: Phase) -> Decided:
        self._lose_orders(world)
        self.let_go(world)
        return world.event(events.Undone(world.epoch, self.node, "llm", 1, self.action, 5000))

    def operators_abort(self, world: World, phase: Phase) -> Decided:
        return world.event(events.AbortRequested(self.action, "wrong job"))

    def _lose_orders(self, world: World) -> None:
        world.orders = [o for o in world.orders if o.node != self.node]


def name_of(value: object) -> str:
    """A phase or a cause, in the name of a test."""
    return value.__name__ if callable(value) and not isinstance(value, str) else str(value)


def told(decided: Decided) -> set[tuple[str, int, bool]]:
    """Who is ordered to undo: node, worker, and whether it is to be killed."""
    undo = [c for c in decided if isinstance(c, commands.SendOrder) and c.phase is Phase.UNDO]
    return {(o.node, o.worker, o.kill) for o in undo}
