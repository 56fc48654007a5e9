"""The in-memory twin of etcd: revisions, leases, watches, and failures on demand.

Tests and benchmarks run on it; the contract test holds it to etcd's behaviour.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_left, insort
from collections import deque
from collections.abc import AsyncGenerator, Callable, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

from coordinator.core.errors import StoreError
from coordinator.store.fence import FixedFence
from coordinator.store.keys import Keys
from coordinator.store.kv import (
    COMPACTED,
    Compacted,
    Compare,
    Delete,
    Event,
    Item,
    Lease,
    Put,
    Range,
    View,
    Written,
    below,
)
from coordinator.store.records import Records

HISTORY_EVENTS_MAX = 100_000  # older history is compacted, as etcd's own is
TXN_OPS_MAX = 128  # etcd's default --max-txn-ops
REQUEST_BYTES_MAX = 1_572_864  # etcd's default --max-request-bytes


class Fault(StrEnum):
    """What becomes of a write that fails."""

    REFUSED = "refused"  # definite: nothing happened
    LOST_NOT_APPLIED = "lost, not applied"
    LOST_APPLIED = "lost, applied"
    LOST_APPLIED_LATER = "lost, applied later"  # by `deliver`, as a paused etcd may do


@dataclass
class _Planned:
    fault: Fault
    key_part: str


class MemoryKeyValue:
    """A key-value store with etcd's semantics in one process."""

    def __init__(self) -> None:
        """Begin empty, at revision 1 as a new etcd does."""
        self.revision = 1
        self._order: list[str] = []
        self._versions: dict[str, list[tuple[int, Item | None]]] = {}
        self._history: list[Event] = []
        self._compacted = 0
        self._leases: dict[int, tuple[float, asyncio.TimerHandle | None]] = {}
        self._next_lease = 1
        self._faults: deque[_Planned] = deque()
        self._late: deque[Callable[[], object]] = deque()
        self._changed = asyncio.Event()

    # -- failures on demand ----------------------------------------------------------------------

    def fail_next(self, fault: Fault, key_part: str = "") -> None:
        """Let the next write that puts or deletes a key containing `key_part` fail in that way."""
        self._faults.append(_Planned(fault, key_part))

    def deliver(self) -> None:
        """Apply the writes that were lost and kept back."""
        while self._late:
            self._late.popleft()()

    def compact(self, revision: int) -> None:
        """Forget the history before `revision`; what is there now stays readable."""
        self._compacted = max(self._compacted, revision)
        self._history = [each for each in self._history if each.revision >= revision]
        for key, versions in self._versions.items():
            old = [each for each in versions if each[0] < revision]
            self._versions[key] = old[-1:] + versions[len(old) :]

    # -- the port --------------------------------------------------------------------------------

    async def read(self, *ranges: Range) -> View:
        """Read all ranges at one revision."""
        return View(self.revision, tuple(tuple(self._find(each)) for each in ranges))

    async def write(self, compares: Sequence[Compare], ops: Sequence[Put | Delete]) -> Written:
        """Apply all of `ops` if all of `compares` hold, unless a failure was ordered."""
        fault = self._fault_for(ops)
        if fault is None:
            return self._apply(compares, ops)
        if fault is Fault.REFUSED:
            raise StoreError("memory store: refused on demand")
        if fault is Fault.LOST_APPLIED:
            self._apply(compares, ops)
        if fault is Fault.LOST_APPLIED_LATER:
            self._late.append(lambda: self._apply(compares, ops))
        raise StoreError("memory store: answer lost on demand", definite=False)

    async def grant(self, ttl_s: float) -> Lease:
        """Open a lease that ends by itself."""
        lease, self._next_lease = self._next_lease, self._next_lease + 1
        self._leases[lease] = (ttl_s, self._end_after(lease, ttl_s))
        return Lease(lease, ttl_s)

    async def keep_alive(self, lease: int) -> float:
        """Renew a lease; 0 when it is gone."""
        if lease not in self._leases:
            return 0.0
        ttl_s, timer = self._leases[lease]
        if timer is not None:
            timer.cancel()
        self._leases[lease] = (ttl_s, self._end_after(lease, ttl_s))
        return ttl_s

    async def revoke(self, lease: int) -> None:
        """End a lease and delete its keys."""
        _, timer = self._leases.pop(lease, (0.0, None))
        if timer is not None:
            timer.cancel()
        keys = [key for key in self._order if (item := self._now(key)) and item.lease == lease]
        if keys:
            self._apply((), [Delete(key) for key in keys])

    async def watch(self, prefix: str, revision: int) -> AsyncGenerator[Event | Compacted]:
        """Every change below `prefix` from `revision` on."""
        at = revision
        while True:
            if at < self._compacted:
                yield Compacted(self._compacted)
                return
            changed = self._changed
            start = bisect_left(self._history, at, key=lambda each: each.revision)
            news = self._history[start:]
            at = max(at, self.revision + 1)
            for event in news:
                if event.key.startswith(prefix):
                    yield event
            await changed.wait()

    async def close(self) -> None:
        """End the timers of all leases; the content stays."""
        for lease, (ttl_s, timer) in self._leases.items():
            if timer is not None:
                timer.cancel()
                self._leases[lease] = (ttl_s, None)

    # -- inside ----------------------------------------------------------------------------------

    def _fault_for(self, ops: Sequence[Put | Delete]) -> Fault | None:
        if self._faults and any(self._faults[0].key_part in op.key for op in ops):
            return self._faults.popleft().fault
        return None

    def _end_after(self, lease: int, ttl_s: float) -> asyncio.TimerHandle:
        loop = asyncio.get_running_loop()
        ended: set[asyncio.Task[None]] = set()  # keeps the task alive until it is done

        def end() -> None:
            task = loop.create_task(self.revoke(lease))
            ended.add(task)
            task.add_done_callback(ended.discard)

        return loop.call_later(ttl_s, end)

    def _now(self, key: str) -> Item | None:
        versions = self._versions.get(key)
        return versions[-1][1] if versions else None

    def _at(self, key: str, revision: int) -> Item | None:
        versions = self._versions.get(key, [])
        index = bisect_left(versions, revision + 1, key=lambda each: each[0])
        return versions[index - 1][1] if index else None

    def _find(self, wanted: Range) -> list[Item]:
        if wanted.revision and wanted.revision < self._compacted:
            raise StoreError(f"revision {wanted.revision} is gone", details=(COMPACTED,))
        first = bisect_left(self._order, wanted.key)
        end = wanted.end or f"{wanted.key}\0"
        found: list[Item] = []
        for key in self._order[first : bisect_left(self._order, end)]:
            item = self._at(key, wanted.revision) if wanted.revision else self._now(key)
            if item is not None:
                found.append(replace(item, value=b"") if wanted.keys_only else item)
            if wanted.limit and len(found) == wanted.limit:
                break
        return found

    def _apply(self, compares: Sequence[Compare], ops: Sequence[Put | Delete]) -> Written:
        seen = {each.key: self._now(each.key) for each in compares}
        if not all(_holds(each, seen[each.key]) for each in compares):
            return Written(False, self.revision, seen)
        self._refuse_what_etcd_would(ops)
        effective = [op for op in ops if isinstance(op, Put) or self._now(op.key) is not None]
        if effective:
            self.revision += 1
            for op in effective:
                self._set(op)
            self._changed.set()
            self._changed = asyncio.Event()
        if len(self._history) > HISTORY_EVENTS_MAX:
            self.compact(self._history[HISTORY_EVENTS_MAX // 2].revision)
        return Written(True, self.revision, {})

    def _refuse_what_etcd_would(self, ops: Sequence[Put | Delete]) -> None:
        puts = [op for op in ops if isinstance(op, Put)]
        if len(ops) > TXN_OPS_MAX:
            raise StoreError(f"too many operations in one transaction: {len(ops)}")
        if sum(len(op.key) + len(op.value) for op in puts) > REQUEST_BYTES_MAX:
            raise StoreError("request is too large")
        if len({op.key for op in puts}) < len(puts):
            raise StoreError("duplicate key in one transaction")
        for op in puts:
            if op.lease and op.lease not in self._leases:
                raise StoreError(f"lease {op.lease} is gone")

    def _set(self, op: Put | Delete) -> None:
        before = self._now(op.key)
        after: Item | None = None
        if isinstance(op, Put):
            created = before.create_revision if before else self.revision
            after = Item(op.key, op.value, created, self.revision, op.lease)
        if op.key not in self._versions:
            self._versions[op.key] = []
            insort(self._order, op.key)
        self._versions[op.key].append((self.revision, after))
        self._history.append(Event(self.revision, op.key, after))


def _holds(compare: Compare, item: Item | None) -> bool:
    if item is None:
        return compare.equals == 0
    return compare.equals == (
        item.create_revision if compare.field == "create" else item.mod_revision
    )


class MemoryStore(Records):
    """A store in memory that leads from the start; for tests and benchmarks."""

    def __init__(self, kv: MemoryKeyValue | None = None, prefix: str = "/allstop") -> None:
        """Lead over `kv`; whoever led there before is fenced from now on."""
        self.memory = kv or MemoryKeyValue()
        leaders = Keys(prefix).leaders
        for before in self.memory._find(Range(leaders, below(leaders))):
            self.memory._apply((), [Delete(before.key)])
        key = f"{leaders}memory-{self.memory.revision:x}"
        written = self.memory._apply((), [Put(key, b"memory")])
        super().__init__(self.memory, FixedFence(key, written.revision), prefix)
