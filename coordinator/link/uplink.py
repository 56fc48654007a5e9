"""How a carrier and a leader reach each other; here the way inside one process.

The other way is a gRPC stream (`relay`). Hub and Carrier know nothing but these two interfaces.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from allstop.v1 import carrier_pb2

from coordinator.core.errors import AllstopError

if TYPE_CHECKING:
    from coordinator.link.carrier import Carrier
    from coordinator.link.hub import Hub


class Uplink(Protocol):
    """A leader, as a carrier that follows it sees it."""

    @property
    def epoch(self) -> int:
        """Of the leader."""

    @property
    def coordinator(self) -> str:
        """The leader's name, for people."""

    @property
    def report_interval_ms(self) -> int:
        """Longest silence between two reports of a shim."""

    @property
    def behind(self) -> bool:
        """Whether the leader, or the way to it, is behind: shims should be read more slowly."""

    def check(self) -> None:
        """Raise Fenced when the leader's right is known to have ended; asked at each sending."""

    def send(self, message: carrier_pb2.CarrierMessage) -> None:
        """Take a message to the leader without waiting; when that fails, the link is lost soon."""

    def close(self, why: AllstopError) -> None:
        """The carrier does not follow this leader any more."""


class Downlink(Protocol):
    """A carrier, as the leader sees it."""

    def send(self, message: carrier_pb2.LeaderMessage) -> None:
        """Take a message to the carrier without waiting; when that fails, the link is lost soon."""

    def end(self, why: AllstopError) -> None:
        """The leader does not speak to this carrier any more."""


class LocalUplink:
    """The leader is this very process: messages go from hand to hand. Both ends in one."""

    def __init__(self, carrier: Carrier, hub: Hub) -> None:
        """Join the hub; raises what the hub was closed with. `carrier.follow` comes next."""
        self.epoch = hub.epoch
        self.coordinator = hub.coordinator
        self.report_interval_ms = hub.report_interval_ms
        self._carrier = carrier
        self._hub = hub
        self._branch = hub.join(carrier.name, carrier.session, _Down(carrier, self), near=True)

    @property
    def behind(self) -> bool:
        """Whether the leader is behind."""
        return self._hub.behind()

    def check(self) -> None:
        """Raise Fenced when the leader's right has ended."""
        self._hub.check()

    def send(self, message: carrier_pb2.CarrierMessage) -> None:
        """Hand a message to the leader."""
        self._hub.take(self._branch, message)

    def close(self, why: AllstopError) -> None:
        """The carrier follows another leader, or none."""
        self._hub.part(self._branch, why)


class _Down:
    """The way back."""

    def __init__(self, carrier: Carrier, uplink: LocalUplink) -> None:
        self._carrier = carrier
        self._uplink = uplink

    def send(self, message: carrier_pb2.LeaderMessage) -> None:
        self._carrier.take(self._uplink, message)

    def end(self, why: AllstopError) -> None:
        self._carrier.unfollow(why, self._uplink)
