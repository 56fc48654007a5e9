"""A replica that does not lead: it carries shims for whoever a test says leads."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import grpc.aio

from coordinator.link.carrier import Carrier
from coordinator.link.options import Keepalive, client_options
from coordinator.link.relay import RelayClient
from coordinator.server.serving import Seat, start_serving
from coordinator.store.election import Leader


class Leaders:
    """Who leads, as a test says."""

    def __init__(self) -> None:
        """Nobody yet."""
        self._told: asyncio.Queue[Leader | None] = asyncio.Queue()

    def now(self, leader: Leader | None) -> None:
        """From now on it is this one."""
        self._told.put_nowait(leader)

    async def all(self) -> AsyncIterator[Leader | None]:
        """Each that is told."""
        while True:
            yield await self._told.get()


@dataclass(frozen=True)
class Replica:
    """What a test acts on."""

    carrier: Carrier
    address: str
    leaders: Leaders

    async def until(self, wanted: Callable[[], object], timeout_s: float = 20.0) -> None:
        """Wait until something is so here."""
        await until(wanted, timeout_s)


async def until(wanted: Callable[[], object], timeout_s: float = 20.0) -> None:
    """Look every hundredth of a second until something is so."""
    async with asyncio.timeout(timeout_s):
        while not wanted():  # noqa: ASYNC110 - nobody tells of all that is waited for here
            await asyncio.sleep(0.01)


def dial(address: str) -> grpc.aio.Channel:
    """A channel of its own to a leader."""
    options = [*client_options(Keepalive()), ("grpc.use_local_subchannel_pool", 1)]
    return grpc.aio.insecure_channel(address, options=options)


@asynccontextmanager
async def replica(
    name: str, directory: Path, *, outgoing_max: int = 1_024
) -> AsyncIterator[Replica]:
    """Serve shims on a unix socket and follow."""
    carrier, leaders = Carrier(name), Leaders()
    seat = Seat(carrier)
    serving = await start_serving(seat, unix_socket=directory / name, node_lease_s=3600.0)
    client = RelayClient(carrier, dial, beat_s=0.2, outgoing_max=outgoing_max)
    following = asyncio.create_task(client.run(leaders.all()))
    try:
        yield Replica(carrier, serving.addresses[0], leaders)
    finally:
        following.cancel()
        await asyncio.gather(following, return_exceptions=True)
        await serving.stop(0.2)
