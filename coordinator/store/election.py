"""Who leads: a key under a lease, the oldest key wins, its create revision is the epoch.

The leader does not wait to be told that it lost. Its right ends by its own clock, `margin_s` before
the lease can end at etcd: last renewal that was answered, counted from when it was *sent*, plus the
lease's time, minus the margin. The clock goes on while the machine sleeps (CLOCK_BOOTTIME),
so that a paused leader finds itself expired before it sends anything.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncGenerator, Callable, Iterable
from contextlib import aclosing
from dataclasses import dataclass

from coordinator.core.errors import Fenced, StoreError
from coordinator.store.keys import Keys
from coordinator.store.kv import (
    Compacted,
    Compare,
    Event,
    Item,
    KeyValue,
    Lease,
    Put,
    Range,
    View,
    below,
)

TTL_S = 10.0
RETRY_S = 0.5
LOOKS_MAX = 1_000_000  # a candidate looks again at least every third of a lease

Clock = Callable[[], float]


def boottime() -> float:
    """Seconds since the machine started, sleep included."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


@dataclass(frozen=True)
class Leader:
    """Who leads, as its key in the store says."""

    name: str
    address: str  # where other replicas reach it; empty: it has not said
    epoch: int


class Leadership:
    """The right to write (a `Fence`), kept up in the background until it is lost or resigned."""

    def __init__(self, kv: KeyValue, lease: Lease, sent_at: float, clock: Clock) -> None:
        """Begin to keep the lease alive; `Election` fills in key and epoch once they are known."""
        self.key = ""
        self.epoch = 0
        self.lease = lease.lease
        self.reason = ""  # why it was lost
        self._kv = kv
        self._clock = clock
        self._ttl_s = lease.ttl_s
        self._margin_s = lease.ttl_s / 5
        self._until = sent_at + lease.ttl_s - self._margin_s
        self._lost = asyncio.Event()
        self._callbacks: list[Callable[[str], None]] = []
        self._task = asyncio.create_task(self._keep(), name=f"lease {lease.lease:x}")

    @property
    def remaining_s(self) -> float:
        """How long the right surely lasts without another renewal; 0 when it is lost."""
        return 0.0 if self._lost.is_set() else max(0.0, self._until - self._clock())

    def check(self) -> None:
        """Raise Fenced when the right was lost or may have ended by our own clock."""
        if not self._lost.is_set() and self._clock() >= self._until:
            self.lose("its lease was not renewed in time")
        if self._lost.is_set():
            raise Fenced(f"epoch {self.epoch} has ended: {self.reason}", advice="step down")

    def lose(self, reason: str) -> None:
        """End the right now; the first reason stays, callbacks run once."""
        if self._lost.is_set():
            return
        self.reason = reason
        self._lost.set()
        self._task.cancel()
        for callback in self._callbacks:
            callback(reason)

    def on_lost(self, callback: Callable[[str], None]) -> None:
        """Run `callback(reason)` when the right ends (at once when it has)."""
        if self._lost.is_set():
            callback(self.reason)
        else:
            self._callbacks.append(callback)

    async def wait_lost(self) -> str:
        """Wait until the right ends, for whatever reason, and say why."""
        await self._lost.wait()
        return self.reason

    async def resign(self) -> None:
        """Give the right back, so that the next leader need not wait for the lease to end.

        A failure to tell etcd is swallowed: the lease ends by itself.
        """
        self.lose("it was resigned")
        await asyncio.gather(self._task, return_exceptions=True)
        try:
            await self._kv.revoke(self.lease)
        except StoreError:
            return

    async def _keep(self) -> None:
        pause_s = self._ttl_s / 3
        while (left_s := self._until - self._clock()) > 0:
            await asyncio.sleep(min(pause_s, left_s))
            sent_at = self._clock()
            left_s = self._until - sent_at
            if left_s <= 0:
                break
            try:
                async with asyncio.timeout(left_s):
                    ttl_s = await self._kv.keep_alive(self.lease)
            except (StoreError, TimeoutError):
                pause_s = min(RETRY_S, self._ttl_s / 6)
                continue
            if ttl_s <= 0:
                self.lose("its lease is gone from the store")
                return
            pause_s = self._ttl_s / 3
            self._until = sent_at + ttl_s - self._margin_s
        self.lose("its lease was not renewed in time")


class Election:
    """Campaigns for one replica, and tells who leads."""

    def __init__(
        self,
        kv: KeyValue,
        name: str,
        *,
        address: str = "",
        prefix: str = "/allstop",
        ttl_s: float = TTL_S,
        clock: Clock = boottime,
    ) -> None:
        """`name` is for people, `address` for other replicas; the lease's id makes the key unique.

        Both are the key's value.
        """
        self._kv = kv
        self._name = name
        self._address = address
        self._keys = Keys(prefix)
        self._ttl_s = ttl_s
        self._clock = clock

    async def campaign(self, timeout_s: float | None = None) -> Leadership:
        """Wait until this replica leads; with `timeout_s`, raise TimeoutError after that time.

        Cancelled or failed, it takes its candidacy back. Errors of the store are waited out.
        """
        async with asyncio.timeout(timeout_s):
            while True:
                try:
                    return await self._candidate()
                except (StoreError, Fenced):
                    await asyncio.sleep(RETRY_S)

    async def leader(self) -> Leader | None:
        """Who leads at this moment; raises StoreError."""
        return _first((await self._candidates()).found[0])

    async def leaders(self) -> AsyncGenerator[Leader | None]:
        """Who leads now, then again at every change, for ever; None while nobody does.

        Errors of the store are waited out: the last leader that was seen stays the present one,
        since it may well lead on. A watch that falls silent is backed by a look every lease.
        """
        last: list[Leader | None] = []
        while True:
            try:
                view = await self._candidates()
                standing = {each.key: each for each in view.found[0]}
                if (now := _first(standing.values())) not in last:
                    last = [now]
                    yield now
                async with aclosing(self._changes(view.revision + 1)) as changes:
                    async for change in changes:
                        _apply(standing, change)
                        if (now := _first(standing.values())) not in last:
                            last = [now]
                            yield now
            except StoreError:
                await asyncio.sleep(RETRY_S)

    async def _changes(self, revision: int) -> AsyncGenerator[Event]:
        """Changes among the candidates, until it is time to look again."""
        async with aclosing(self._kv.watch(self._keys.leaders, revision)) as news:
            while True:
                try:
                    async with asyncio.timeout(self._ttl_s):
                        change = await anext(news)
                except TimeoutError:
                    return
                except StopAsyncIteration:
                    break
                if isinstance(change, Compacted):
                    break
                yield change
        await asyncio.sleep(RETRY_S)  # a watch that ends by itself may do so again

    async def _candidate(self) -> Leadership:
        sent_at = self._clock()
        lease = await self._kv.grant(self._ttl_s)
        right = Leadership(self._kv, lease, sent_at, self._clock)
        try:
            right.key = self._keys.leader(lease.lease)
            await self._stand(right)
            await self._wait_turn(right)
            right.check()
            return right
        except BaseException:
            await right.resign()
            raise

    async def _stand(self, right: Leadership) -> None:
        """Put our key; when the answer is lost, look whether it is there."""
        try:
            written = await self._kv.write(
                [Compare(right.key, "create", 0)],
                [Put(right.key, self._value(), right.lease)],
            )
            right.epoch = written.revision
        except StoreError as error:
            if error.definite:
                raise
            found = (await self._kv.read(Range(right.key))).found[0]
            if not found:
                raise  # begin anew with another lease; this one is revoked and its key with it
            right.epoch = found[0].create_revision

    def _value(self) -> bytes:
        return json.dumps({"name": self._name, "address": self._address}).encode()

    async def _wait_turn(self, right: Leadership) -> None:
        for _ in range(LOOKS_MAX):
            right.check()
            view = await self._candidates()
            candidates = sorted(view.found[0], key=lambda each: each.create_revision)
            keys = [each.key for each in candidates]
            if right.key not in keys:
                raise StoreError(f"our candidacy {right.key} is gone from the store")
            own = keys.index(right.key)
            if own == 0:
                return
            await self._wait_gone(candidates[own - 1].key, view.revision)

    async def _wait_gone(self, key: str, revision: int) -> None:
        """Wait for the candidate before us to go, but look again after a third of a lease."""
        try:
            async with asyncio.timeout(self._ttl_s / 3):
                async with aclosing(self._kv.watch(key, revision + 1)) as changes:
                    async for change in changes:
                        if isinstance(change, Compacted) or change.item is None:
                            return
        except TimeoutError:
            return

    async def _candidates(self) -> View:
        return await self._kv.read(Range(self._keys.leaders, below(self._keys.leaders)))


def _first(candidates: Iterable[Item]) -> Leader | None:
    """The oldest candidate leads."""
    oldest = min(candidates, key=lambda each: each.create_revision, default=None)
    if oldest is None:
        return None
    name, address = _told(oldest.value)
    return Leader(name, address, oldest.create_revision)


def _told(value: bytes) -> tuple[str, str]:
    """Name and address; a value that is not ours is taken for a name, as older versions put it."""
    text = value.decode(errors="replace")
    try:
        fields = json.loads(text)
        return str(fields["name"]), str(fields["address"])
    except (ValueError, KeyError, TypeError):
        return text, ""


def _apply(standing: dict[str, Item], change: Event) -> None:
    """What a change leaves of the candidates; a repeated one changes nothing."""
    if change.item is None:
        standing.pop(change.key, None)
    else:
        standing[change.key] = change.item
