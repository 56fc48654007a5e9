"""A key-value client that tells how long each of its answers took."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
from contextlib import contextmanager

from coordinator.core.errors import StoreError
from coordinator.store.kv import (
    Compacted,
    Compare,
    Delete,
    Event,
    KeyValue,
    Lease,
    Put,
    Range,
    View,
    Written,
)

Heard = Callable[[str, str, float], None]  # operation, outcome, seconds


class TimedKeyValue:
    """`KeyValue` on top of another; `heard` must not block."""

    def __init__(self, kv: KeyValue, heard: Heard) -> None:
        self._kv = kv
        self._heard = heard

    @contextmanager
    def _timed(self, operation: str) -> Iterator[None]:
        began, outcome = time.perf_counter(), "given up"  # what a cancelled one was
        try:
            yield
            outcome = "ok"
        except StoreError as error:
            outcome = "refused" if error.definite else "lost"
            raise
        finally:
            self._heard(operation, outcome, time.perf_counter() - began)

    async def read(self, *ranges: Range) -> View:
        with self._timed("read"):
            return await self._kv.read(*ranges)

    async def write(self, compares: Sequence[Compare], ops: Sequence[Put | Delete]) -> Written:
        with self._timed("write"):
            return await self._kv.write(compares, ops)

    async def grant(self, ttl_s: float) -> Lease:
        with self._timed("grant"):
            return await self._kv.grant(ttl_s)

    async def keep_alive(self, lease: int) -> float:
        with self._timed("keep_alive"):
            return await self._kv.keep_alive(lease)

    async def revoke(self, lease: int) -> None:
        with self._timed("revoke"):
            await self._kv.revoke(lease)

    def watch(self, prefix: str, revision: int) -> AsyncGenerator[Event | Compacted]:
        return self._kv.watch(prefix, revision)

    async def close(self) -> None:
        await self._kv.close()
