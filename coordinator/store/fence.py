"""What makes a writer the leader: a key in the store, its epoch, and a clock that ends it."""

from __future__ import annotations

from typing import Protocol

from coordinator.core.errors import Fenced


class Fence(Protocol):
    """The right to write; every transaction of the store compares `key` and `epoch`."""

    @property
    def key(self) -> str:
        """The leader's key."""

    @property
    def epoch(self) -> int:
        """The create revision of that key: the fencing token, growing with each leader."""

    @property
    def lease(self) -> int:
        """The leader's lease; 0 where there is none."""

    def check(self) -> None:
        """Raise Fenced when the right may have ended; called before anything is sent."""

    def lose(self, reason: str) -> None:
        """Note that somebody else leads; `check` raises from now on."""


class FixedFence:
    """A right that ends only when it is taken away; for memory stores."""

    def __init__(self, key: str, epoch: int, lease: int = 0) -> None:
        """Hold the right of a leader's key that is in the store already."""
        self.key = key
        self.epoch = epoch
        self.lease = lease
        self._lost = ""

    def check(self) -> None:
        """Raise Fenced after `lose`."""
        if self._lost:
            raise Fenced(f"epoch {self.epoch} ended: {self._lost}", advice="step down")

    def lose(self, reason: str) -> None:
        """End the right; the first reason stays."""
        self._lost = self._lost or reason


class NoFence:
    """What a replica has that does not lead: it reads, and every write is refused."""

    key = ""
    epoch = 0
    lease = 0

    def check(self) -> None:
        """Always raise Fenced."""
        raise Fenced("this replica does not lead", advice="ask the leader")

    def lose(self, reason: str) -> None:
        """Nothing to lose."""
