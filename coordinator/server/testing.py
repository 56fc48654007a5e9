"""A whole coordinator in one call, for tests and benchmarks: real gRPC, any store, no election."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from coordinator.core.policy import Policy
from coordinator.health.table import rules
from coordinator.link.carrier import Carrier
from coordinator.link.options import Keepalive
from coordinator.link.uplink import LocalUplink
from coordinator.server.reign import Reign
from coordinator.server.serving import Seat, Serving, start_serving
from coordinator.store.memory import MemoryStore
from coordinator.store.port import Store
from coordinator.store.records import Records


@dataclass(frozen=True)
class RunningCoordinator:
    """What a test needs of the coordinator it has started."""

    reign: Reign
    serving: Serving
    seat: Seat
    store: Store

    @property
    def address(self) -> str:
        """The first address to dial."""
        return self.serving.addresses[0]


@asynccontextmanager
async def running_coordinator(
    *,
    store: Store | None = None,
    epoch: int = 0,
    listen: Sequence[str] = ("127.0.0.1:0",),
    unix_socket: Path | None = None,
    policy: Policy | None = None,
    keepalive: Keepalive | None = None,
    name: str = "coordinator-test",
    node_lease_s: float = 3600.0,  # fake shims report on change alone
    unix: Callable[[], float] = time.time,
) -> AsyncIterator[RunningCoordinator]:
    """Lead at once and serve; the store stays open. `epoch` 0: that of a MemoryStore's fence."""
    chosen = MemoryStore() if store is None else store
    if not epoch:
        assert isinstance(chosen, MemoryStore), "give the epoch that this store was elected in"
        epoch = chosen.fence.epoch
    check = chosen.fence.check if isinstance(chosen, Records) else _always
    reign = Reign(
        epoch=epoch,
        coordinator=name,
        store=chosen,
        policy=policy,
        health=rules(),
        check=check,
        unix=unix,
    )
    seat = Seat(Carrier(name))
    serving = await start_serving(
        seat,
        listen=listen,
        unix_socket=unix_socket,
        keepalive=keepalive,
        node_lease_s=node_lease_s,
    )
    try:
        await reign.begin()
        seat.reign = reign
        seat.carrier.follow(LocalUplink(seat.carrier, reign.hub))
        ending = asyncio.create_task(_close_when_ended(reign, seat))
        yield RunningCoordinator(reign, serving, seat, chosen)
        ending.cancel()
        await asyncio.gather(ending, return_exceptions=True)
    finally:
        seat.reign = None
        await reign.close()
        await serving.stop(0.2)


async def _close_when_ended(reign: Reign, seat: Seat) -> None:
    """What a replica does when its right to lead ends."""
    why = await reign.ended()
    seat.reign, seat.empty = None, str(why)
    await reign.close()


def _always() -> None:
    """The right to lead never ends."""
