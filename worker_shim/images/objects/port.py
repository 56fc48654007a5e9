"""Port of a store of objects: bytes under names, written once, read in parts, listed, deleted."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from coordinator.core.errors import DriverError

Part = bytes | bytearray | memoryview


class ObjectMissing(DriverError):
    """There is no object under this name."""


@dataclass(frozen=True)
class Listed:
    """One object as a listing shows it."""

    name: str
    size_bytes: int
    modified_unix_s: float  # by the store's clock


class ObjectStore(Protocol):
    """Bytes that outlive the node, under names like `job/packs/0b1c`.

    Every method blocks, may be called from several threads at once, gives the interpreter free
    while bytes move, and has a time limit of its own. An object is visible whole or not at all,
    and survives a loss of power from the moment that `put` returns. Raises DriverError: full,
    unreachable, read-only, refused; `definite` is False where an object may have been written.
    """

    @property
    def identity(self) -> str:
        """Tells two stores apart; nodes that give the same identity share one store."""

    @property
    def scheme(self) -> str:
        """The kind of store in a word: directory, s3, memory, partner …"""

    def put(self, name: str, parts: Sequence[Part]) -> bool:
        """Write an object unless there is one; False: there was, and it stays as it is.

        Two writers of one name agree on one of them, whatever their timing.
        """

    def get(self, name: str, *, start: int = 0, length: int | None = None) -> bytes:
        """Read an object, or what there is of a part of it; raises ObjectMissing."""

    def size(self, name: str) -> int:
        """Size in bytes; raises ObjectMissing."""

    def list(self, prefix: str) -> Iterator[Listed]:
        """Every object whose name begins with `prefix`, in no order; nothing for none."""

    def delete(self, name: str) -> None:
        """Remove an object; no error when it is gone."""

    def free_bytes(self) -> int:
        """Room left; 1 << 62 where the store knows no limit."""

    def sweep(self) -> tuple[str, ...]:
        """At a shim's start: remove what its earlier lives left half-written; returns what went."""

    def close(self) -> None:
        """Let go of connections and threads; no call after it."""
