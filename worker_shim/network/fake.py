"""A network without packets: what is locked is remembered, nothing is dropped."""

from __future__ import annotations

from collections.abc import Sequence

from coordinator.core.errors import DriverError
from coordinator.core.model import Endpoint
from worker_shim.network.port import Sockets
from worker_shim.process.port import Tree


class FakeNetworkDriver:
    """`NetworkDriver` for tests.

    `of_tree` is what every tree has; `locks` the locks that are there; `left` the connections that
    the kernel still keeps; the name of a method in `broken` makes it raise.
    """

    def __init__(self, of_tree: Sockets | None = None) -> None:
        self.of_tree = of_tree or Sockets((), ())
        self.locks: dict[str, Sockets] = {}
        self.left: set[Endpoint] = set()
        self.broken: set[str] = set()
        self.calls: list[tuple[str, str]] = []

    def sockets(self, tree: Tree) -> Sockets:
        """The same for every tree that has processes."""
        return self.of_tree if tree.processes else Sockets((), ())

    async def lock(self, name: str, sockets: Sockets, *, deadline_s: float) -> None:
        """Remember the lock."""
        self._called("lock", name)
        self.locks[name] = sockets

    async def unlock(self, name: str, *, deadline_s: float) -> None:
        """Forget it."""
        self._called("unlock", name)
        self.locks.pop(name, None)

    async def locked(self, name: str) -> bool:
        """Look."""
        self._called("locked", name)
        return name in self.locks

    async def clear(
        self,
        connections: Sequence[Endpoint],
        *,
        deadline_s: float,
        ports: Sequence[tuple[str, int]] = (),
    ) -> int:
        """Take these out of `left`, and those at the ports."""
        self._called("clear", f"{len(connections)} connections, {len(ports)} ports")
        numbers = {port for _, port in ports}
        gone = {e for e in self.left if e in set(connections) or e.local_port in numbers}
        self.left -= gone
        return len(gone)

    def _called(self, method: str, what: str) -> None:
        self.calls.append((method, what))
        if method in self.broken:
            raise DriverError(f"told to fail: {method} of {what}")
