"""Port of the network driver: a worker's connections, and the lock on exactly these."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from coordinator.core.model import Endpoint
from worker_shim.process.port import Tree


@dataclass(frozen=True)
class Sockets:
    """TCP sockets of one tree. IPv4-mapped addresses are given as plain IPv4."""

    established: tuple[Endpoint, ...]  # loopback among the tree's own processes included
    listening: tuple[tuple[str, int], ...]  # address, port

    @property
    def inside(self) -> tuple[Endpoint, ...]:
        """Established ones that have both ends in this tree."""
        known = set(self.established)
        return tuple(end for end in self.established if reverse(end) in known)

    @property
    def leaving(self) -> tuple[Endpoint, ...]:
        """The other established ones: to other workers, or out of the job."""
        known = set(self.established)
        return tuple(end for end in self.established if reverse(end) not in known)


def reverse(end: Endpoint) -> Endpoint:
    """The same connection as its other end sees it."""
    return Endpoint(end.remote_address, end.remote_port, end.local_address, end.local_port)


def moved(end: Endpoint, moves: Mapping[str, str]) -> Endpoint:
    """The same connection with its addresses mapped."""
    return replace(
        end,
        local_address=moves.get(end.local_address, end.local_address),
        remote_address=moves.get(end.remote_address, end.remote_address),
    )


class NetworkDriver(Protocol):
    """Input-only lock by an nftables table per worker, in this network namespace."""

    def sockets(self, tree: Tree) -> Sockets:
        """The tree's TCP sockets, by its descriptors."""

    async def lock(self, name: str, sockets: Sockets, *, deadline_s: float) -> None:
        """Drop what arrives for these connections and ports; replaces a lock of the same name.

        `name` is `<job>/<worker>`. Nothing else on the node is touched. Raises DriverError.
        """

    async def unlock(self, name: str, *, deadline_s: float) -> None:
        """Remove the lock; no error when there is none."""

    async def locked(self, name: str) -> bool:
        """Look whether the lock is there."""

    async def clear(
        self,
        connections: Sequence[Endpoint],
        *,
        deadline_s: float,
        ports: Sequence[tuple[str, int]] = (),
    ) -> int:
        """Destroy what the kernel still keeps of exactly these connections; return how many.

        Also destroys what no process holds at the listening `ports` (TIME-WAIT, being closed),
        which would keep a listener without SO_REUSEADDR from its port: give the old incarnation's
        listening sockets. The other ends get a reset, so they should be locked. Raises DriverError
        naming the one that could not be destroyed.
        """
