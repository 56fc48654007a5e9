"""An operator who empties nodes and lets them take workers again, whatever goes wrong meanwhile."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from random import Random
from typing import TYPE_CHECKING

from allstop.v1 import operator_pb2

from coordinator.api import drains
from coordinator.api.desk import Desk
from coordinator.core.drain_records import DrainState
from coordinator.core.errors import AllstopError

if TYPE_CHECKING:
    from tests.sim.world import World

DRAINED = 0.4  # of the runs have one
UNDRAINS = 60  # tries after the healing, a second apart


class Drainer:
    """Its chance is its own: runs without one are as they were."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.chance = Random(f"{world.seed} drains")
        self.wanted = self.chance.random() < DRAINED

    async def run(self) -> None:
        """Until cancelled."""
        if not self.wanted:
            return
        while True:
            await asyncio.sleep(self.chance.uniform(1.0, 6.0))
            node = self.chance.choice(list(self.world.machines))
            deadline_s = self.chance.choice((0.0, 0.0, 3.0, 20.0))
            request = operator_pb2.DrainRequest(node=node, deadline_s=deadline_s, why="a test")
            self._ask(f"drain of {node}", lambda desk, r=request: drains.drain(desk, r))
            await asyncio.sleep(self.chance.uniform(0.5, 12.0))
            if self.chance.random() < 0.8:
                self._undrain(node)

    async def lay_down(self) -> None:
        """After the healing: every node takes workers again, in time."""
        for _ in range(UNDRAINS if self.wanted else 0):
            await asyncio.sleep(1.0)
            leading = [r for r in self.world.replicas.values() if r.leads]
            if not leading:
                continue
            views = max(leading, key=lambda r: r.reign.epoch).reign.control.nodes()  # type: ignore[union-attr]
            left = [v for v in views if v.drain is not None]
            if not left:
                return
            for view in left:
                assert view.drain is not None
                if view.drain.state is not DrainState.UNDRAINING:
                    self._undrain(view.facts.node)
        if self.wanted:
            self.world.fail("liveness: a drain that was called off does not end")

    def _undrain(self, node: str) -> None:
        request = operator_pb2.UndrainRequest(node=node)
        self._ask(f"undrain of {node}", lambda desk: drains.undrain(desk, request))

    def _ask(self, what: str, ask: Callable[[Desk], Awaitable[operator_pb2.DrainReply]]) -> None:
        """In the leader's process; whatever is refused is refused."""
        leading = [r for r in self.world.replicas.values() if r.leads]
        leader = max(leading, key=lambda r: r.reign.epoch) if leading else None  # type: ignore[union-attr]
        if leader is None or leader.process is None or leader.reign is None:
            return

        async def asked(desk: Desk) -> None:
            try:
                await ask(desk)
                self.world.note(f"{what}: taken")
            except AllstopError as error:
                self.world.note(f"{what}: {error.what}")

        leader.process.spawn(asked(leader.reign.desk), what)
