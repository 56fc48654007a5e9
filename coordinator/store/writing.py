"""One transaction under the leader's epoch, and what is known of the records it builds on.

Each write compares the leader's key and the revision at which this store last saw the record. When
an answer was lost, what was sent is kept: finding exactly that under the key later means that it
had arrived, and the next write builds on it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence

from coordinator.core.errors import Fenced, Overtaken, StoreError, Where
from coordinator.store.fence import Fence, NoFence
from coordinator.store.kv import Compare, Delete, Item, KeyValue, Put
from coordinator.store.reading import Reader

ROUNDS_MAX = 4  # how often a write is planned anew after somebody else's change
SEEN_MAX = 10_000  # records whose revision is remembered; those that ended long ago go first


class Conflict(Exception):
    """A comparison other than the leader's failed; nothing was written."""

    def __init__(self, keys: list[str], seen: dict[str, Item | None]) -> None:
        super().__init__(", ".join(keys))
        self.keys = keys
        self.seen = seen


class Writer(Reader):
    """The writing half of the store below its public methods."""

    def __init__(self, kv: KeyValue, fence: Fence | None = None, prefix: str = "/allstop") -> None:
        """Write under `fence`; without one everything can be read and every write is Fenced."""
        super().__init__(kv, prefix)
        self.fence: Fence = fence or NoFence()
        self._seen: dict[str, int] = {}  # attempts and restores: mod revision we build on
        self._unsure: dict[str, set[bytes]] = {}  # values whose answer was lost
        self._locks: dict[str, asyncio.Lock] = {}  # a job's writes go one after the other

    async def _write(
        self,
        conditions: Sequence[Compare],
        ops: Sequence[Put | Delete],
        own: Iterable[str] = (),
    ) -> None:
        """One transaction under the epoch; `own` are keys whose revision is built on later.

        Raises Fenced, Conflict, or the client's StoreError.
        """
        fence = self.fence
        fence.check()
        leader = Compare(fence.key, "create", fence.epoch)
        try:
            written = await self.kv.write([leader, *conditions], ops)
        except StoreError as error:
            if not error.definite:
                for op in ops:
                    if isinstance(op, Put) and (op.key in own or op.key in self._seen):
                        self._unsure.setdefault(op.key, set()).add(op.value)
            raise
        if written.done:
            for op in ops:
                if op.key in own or op.key in self._seen:
                    self._seen[op.key] = written.revision
                    self._unsure.pop(op.key, None)
            self._limit()
            return
        holder = written.seen.get(fence.key)
        if holder is None or holder.create_revision != fence.epoch:
            fence.lose("its key is gone from the store")
            raise Fenced(
                f"epoch {fence.epoch} has ended: its key {fence.key} is gone from the store",
                advice="step down; nothing was written",
            )
        changed = [each.key for each in conditions if not holds(each, written.seen)]
        raise Conflict(changed, written.seen)

    async def _put_own(
        self, key: str, value: bytes, guard: Sequence[Compare], where: Where
    ) -> None:
        """Put a record over the revision last seen, or over our own write whose answer was lost."""
        for _ in range(ROUNDS_MAX):
            condition = Compare(key, "mod", self._seen.get(key, 0))
            try:
                await self._write([condition, *guard], [Put(key, value)], own=(key,))
                return
            except Conflict as conflict:
                if any(each.key in conflict.keys for each in guard):
                    raise Overtaken(
                        f"{key} was committed and is not undone", where=where
                    ) from conflict
                self._adopt_own(key, conflict, where)
        raise restless(key, where)

    def _adopt_own(self, key: str, conflict: Conflict, where: Where) -> None:
        """Build on what is there if we sent it; else name the change, and build on it next time."""
        item = conflict.seen.get(key)
        ours = item is not None and item.value in self._unsure.get(key, ())
        self._seen[key] = item.mod_revision if item else 0
        if not ours:
            raise Overtaken(
                f"{key} was changed by somebody else (now at revision {self._seen[key]})",
                where=where,
                advice="read it again and decide anew",
            ) from conflict

    def _adopt(self, found: tuple[Item, ...]) -> None:
        for item in found:
            self._seen[item.key] = item.mod_revision
            self._unsure.pop(item.key, None)

    def _limit(self) -> None:
        while len(self._seen) > SEEN_MAX:
            oldest = next(iter(self._seen))
            self._seen.pop(oldest)
            self._unsure.pop(oldest, None)

    def _lock(self, job: str) -> asyncio.Lock:
        return self._locks.setdefault(job, asyncio.Lock())


def mod(key: str, found: tuple[Item, ...]) -> Compare:
    return Compare(key, "mod", found[0].mod_revision if found else 0)


def holds(compare: Compare, seen: dict[str, Item | None]) -> bool:
    item = seen.get(compare.key)
    revision = 0
    if item is not None:
        revision = item.create_revision if compare.field == "create" else item.mod_revision
    return revision == compare.equals


def restless(key: str, where: Where) -> StoreError:
    return Overtaken(
        f"{key} was changed by somebody else {ROUNDS_MAX} times while it was to be written",
        where=where,
        advice="two coordinators write under one epoch, or somebody edits the store by hand",
    )
