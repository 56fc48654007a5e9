"""A coordinator process: campaigns, leads, serves shims; everything but gRPC is the real thing."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING

import grpc.aio
from allstop.v1 import carrier_pb2, shim_pb2

from coordinator.core.errors import AllstopError, BugError, Fenced, StoreError
from coordinator.health.table import rules
from coordinator.link.carrier import Carrier
from coordinator.link.relay import RelayClient, RelayService
from coordinator.link.service import LinkService
from coordinator.link.uplink import LocalUplink
from coordinator.server.reign import Reign
from coordinator.server.serving import Seat
from coordinator.store.election import Election, Leadership
from coordinator.store.records import Records
from tests.sim.loop import DEAD, FROZEN, RUNNING, Process
from tests.sim.store import SimKeyValue

if TYPE_CHECKING:
    from tests.sim.world import World

LEASE_S = 8.0
PAUSE_S = 0.5
AGAIN_S = (0.2, 2.0)
ATTACH = "/allstop.v1.ShimLink/Attach"
CARRY = "/allstop.v1.CarrierLink/Carry"


class Replica:
    """One coordinator, over its restarts."""

    def __init__(self, world: World, number: int) -> None:
        self.world = world
        self.name = f"c{number}"
        self.starts = 0
        self.process: Process | None = None
        self.reign: Reign | None = None
        self.jump_s = 0.0  # by which its machine's wall clock was set
        self.start()

    @property
    def up(self) -> bool:
        """Whether the process is there and not frozen."""
        return self.process is not None and self.process.state == RUNNING

    @property
    def leads(self) -> bool:
        """Whether it runs and believes to lead."""
        return self.up and self.reign is not None

    def start(self) -> None:
        """Start the process."""
        world = self.world
        self.starts += 1
        name = f"{self.name}.{self.starts}"
        self.process = Process(world.loop, name, self.name, rate=1.0 + world.drift())
        self.reign = None
        self.process.spawn(self._run(self.process), name)

    def kill(self, *, again: bool = True) -> None:
        """SIGKILL; whoever watches the process starts it again in a moment."""
        if self.process is None or self.process.state == DEAD:
            return
        self.process.kill()
        self.reign = None
        if again:
            self.world.loop.later(self.world.rng.uniform(*AGAIN_S), self.start)

    def freeze(self) -> None:
        """SIGSTOP."""
        if self.process is not None:
            self.process.freeze()
            self.world.network.watch_silence()

    def go_on(self) -> None:
        """SIGCONT."""
        if self.process is not None and self.process.state == FROZEN:
            self.process.go_on()

    async def _run(self, process: Process) -> None:
        world, address = self.world, f"{self.name}:1"
        carrier = Carrier(process.name)
        seat = Seat(carrier, empty=f"{process.name} is a candidate")
        link, relay = LinkService(carrier), RelayService(seat.hub)
        services = {
            ATTACH: (link.Attach, shim_pb2.ShimMessage.FromString, _serialized),
            CARRY: (relay.Carry, carrier_pb2.CarrierMessage.FromString, _serialized),
        }
        world.network.listen(address, process, services)
        kv = SimKeyValue(world.store, process)
        election = Election(kv, process.name, address=address, ttl_s=LEASE_S, clock=process.clock)
        following = RelayClient(carrier, grpc.aio.insecure_channel).run(election.leaders())
        process.spawn(following, f"{process.name} follows")
        while True:
            right = await election.campaign()
            try:
                why = await self._lead(process, seat, kv, right)
            finally:
                seat.reign = self.reign = None
                await right.resign()
            if isinstance(why, BugError):
                world.fail(f"a reign ended by a defect: {why}")
            world.note(f"{process.name} does not lead any more: {why}")
            await asyncio.sleep(PAUSE_S)

    async def _lead(
        self, process: Process, seat: Seat, kv: SimKeyValue, right: Leadership
    ) -> AllstopError:
        reign = Reign(
            epoch=right.epoch,
            coordinator=process.name,
            store=Records(kv, right),
            policy=self.world.policy,
            health=rules(),
            check=right.check,
            clock=process.clock,
            unix=lambda: time.time() + self.jump_s,
        )
        right.on_lost(lambda reason: reign.stop(Fenced(f"epoch {right.epoch} ended: {reason}")))
        try:
            await reign.begin()
            seat.reign = self.reign = reign
            seat.carrier.follow(LocalUplink(seat.carrier, reign.hub))
            self.world.note(f"{process.name} leads in epoch {right.epoch}")
            return await reign.ended()
        except (StoreError, Fenced) as error:
            return error
        finally:
            seat.reign = self.reign = None
            await reign.close()


def _serialized(message: shim_pb2.CoordinatorMessage | carrier_pb2.LeaderMessage) -> bytes:
    return message.SerializeToString()
