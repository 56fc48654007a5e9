"""Port below the store: revisions, transactions, leases and watches as etcd has them.

`etcd/` speaks to a real one, `memory` is the twin that ships beside it. The rules of allstop are
written once, in `records` and `election`, on top of this.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

COMPACTED = "compacted"  # in the details of the StoreError for a revision that is gone


@dataclass(frozen=True)
class Item:
    """One key as it stands at a revision."""

    key: str
    value: bytes
    create_revision: int
    mod_revision: int
    lease: int = 0


@dataclass(frozen=True)
class Range:
    """What to read: one key, or all keys from `key` up to (not including) `end`."""

    key: str
    end: str = ""
    limit: int = 0  # 0: all
    keys_only: bool = False
    revision: int = 0  # 0: now


@dataclass(frozen=True)
class Compare:
    """A condition of a transaction; a key that is not there has both revisions 0."""

    key: str
    field: Literal["create", "mod"]
    equals: int


@dataclass(frozen=True)
class Put:
    """Set a key; with a lease it goes when the lease ends."""

    key: str
    value: bytes
    lease: int = 0


@dataclass(frozen=True)
class Delete:
    """Remove a key; no error when it is not there."""

    key: str


@dataclass(frozen=True)
class View:
    """The answer to a read: items in key order for each range asked, all at one revision."""

    revision: int
    found: tuple[tuple[Item, ...], ...]


@dataclass(frozen=True)
class Written:
    """The answer to a transaction.

    `seen` holds, when a comparison failed, every compared key as it stood at that moment
    (None: not there).
    """

    done: bool
    revision: int
    seen: dict[str, Item | None]


@dataclass(frozen=True)
class Lease:
    """A lease; the server may grant a longer time than was asked."""

    lease: int
    ttl_s: float


@dataclass(frozen=True)
class Event:
    """One change of one key; `item` is None when it was deleted or its lease ended."""

    revision: int
    key: str
    item: Item | None


@dataclass(frozen=True)
class Compacted:
    """The history before `revision` is gone: read anew. The watch ends after it."""

    revision: int


class KeyValue(Protocol):
    """Raises StoreError only; reads are repeated within their deadline, writes never."""

    async def read(self, *ranges: Range) -> View:
        """Read all ranges in one linearizable transaction."""

    async def write(self, compares: Sequence[Compare], ops: Sequence[Put | Delete]) -> Written:
        """Apply all of `ops` if all of `compares` hold, else nothing."""

    async def grant(self, ttl_s: float) -> Lease:
        """Open a lease."""

    async def keep_alive(self, lease: int) -> float:
        """Renew a lease: seconds it now has; 0 when it is gone."""

    async def revoke(self, lease: int) -> None:
        """End a lease and delete its keys; no error when it is gone."""

    def watch(self, prefix: str, revision: int) -> AsyncGenerator[Event | Compacted]:
        """Every change below `prefix` from `revision` on; goes on over broken connections."""

    async def close(self) -> None:
        """Release what the client holds."""


def below(prefix: str) -> str:
    """The end of the range of all keys that begin with `prefix`."""
    return prefix[:-1] + chr(ord(prefix[-1]) + 1)
