"""Who leads, as far as this process knows: its shims and its operators' calls are passed on there.

A leader that this very process is does not count: it is served without a way over the network.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing

from coordinator.api.channels import Channels
from coordinator.link.carrier import Carrier
from coordinator.link.relay import RelayClient
from coordinator.link.security import Dialler
from coordinator.store.election import Election, Leader


class Following:
    """Follows each leader elsewhere, from one election to the next."""

    def __init__(
        self,
        election: Election,
        carrier: Carrier,
        dialler: Dialler,
        *,
        own: Callable[[Leader], bool] = lambda leader: False,
    ) -> None:
        """`own` says whether a leader is this process, or was one of its past lives."""
        self.leader: Leader | None = None
        self.channels = Channels(dialler)
        self._election = election
        self._own = own
        self._relay = RelayClient(carrier, dialler, own=own)

    async def run(self) -> None:
        """Follow until cancelled."""
        async with aclosing(self._elsewhere()) as leaders:
            await self._relay.run(leaders)

    async def close(self) -> None:
        """Close the channels that operators' calls go over."""
        await self.channels.close()

    async def _elsewhere(self) -> AsyncGenerator[Leader | None]:
        async with aclosing(self._election.leaders()) as leaders:
            async for leader in leaders:
                ours = leader is not None and self._own(leader)
                self.leader = None if ours else leader
                yield self.leader
