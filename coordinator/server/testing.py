"""A whole coordinator in one call, for tests and benchmarks: real gRPC, any store, no election."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from coordinator.core.policy import Policy
from coordinator.link.options import Keepalive
from coordinator.server.leadership import Leadership
from coordinator.server.serving import Seat, Serving, start_serving
from coordinator.store.memory import MemoryStore
from coordinator.store.port import Store


@dataclass(frozen=True)
class RunningCoordinator:
    """What a test needs of the coordinator it has started."""

    leadership: Leadership
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
) -> AsyncIterator[RunningCoordinator]:
    """Lead at once and serve; the store stays open. `epoch` 0: that of a MemoryStore's fence."""
    chosen = MemoryStore() if store is None else store
    if not epoch:
        assert isinstance(chosen, MemoryStore), "give the epoch that this store was elected in"
        epoch = chosen.epoch
    leadership = Leadership(epoch=epoch, coordinator=name, store=chosen, policy=policy)
    seat = Seat()
    serving = await start_serving(seat, listen=listen, unix_socket=unix_socket, keepalive=keepalive)
    try:
        await leadership.begin()
        seat.leadership = leadership
        yield RunningCoordinator(leadership, serving, seat, chosen)
    finally:
        seat.leadership = None
        await leadership.close()
        await serving.stop(0.2)
