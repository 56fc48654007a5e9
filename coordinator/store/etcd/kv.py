"""The key-value port over a real etcd: calls have deadlines, reads are repeated, writes never."""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import aclosing
from typing import Any, TypeVar

import grpc.aio
from aetcd import rpc
from tenacity import (
    AsyncRetrying,
    retry_if_exception,
    stop_after_attempt,
    wait_exponential_jitter,
)

from coordinator.core.errors import StoreError
from coordinator.store.etcd.client import EtcdOptions, Member, Members
from coordinator.store.etcd.mapping import mapped, passing
from coordinator.store.kv import (
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

READ_TRIES = 4  # each within the call's deadline
RETRY_S, RETRY_S_MAX = 0.05, 1.0
_NEEDS_LEADER = (("hasleader", "true"),)  # a member cut off from its cluster ends the watch

_Answer = TypeVar("_Answer")


class EtcdKeyValue:
    """A client of one cluster; belongs to the event loop that first uses it."""

    def __init__(self, options: EtcdOptions) -> None:
        """Connect at the first call."""
        self.options = options
        self._members = Members(options)

    async def read(self, *ranges: Range) -> View:
        """Read all ranges in one linearizable transaction."""
        request = rpc.TxnRequest(
            success=[rpc.RequestOp(request_range=_range(each)) for each in ranges]
        )
        answer = await self._repeat(lambda member: self._txn(member, request), "read")
        found = tuple(tuple(map(_item, each.response_range.kvs)) for each in answer.responses)
        return View(answer.header.revision, found)

    async def write(self, compares: Sequence[Compare], ops: Sequence[Put | Delete]) -> Written:
        """Apply all of `ops` if all of `compares` hold; never repeated."""
        keys = list(dict.fromkeys(each.key for each in compares))
        request = rpc.TxnRequest(
            compare=[_compare(each) for each in compares],
            success=[_request(each) for each in ops],
            failure=[rpc.RequestOp(request_range=_range(Range(key))) for key in keys],
        )
        named = f"write {', '.join(op.key for op in ops[:3])}{' …' if len(ops) > 3 else ''}"
        answer = await self._once(lambda member: self._txn(member, request), named)
        if answer.succeeded:
            return Written(True, answer.header.revision, {})
        seen: dict[str, Item | None] = {}
        for key, response in zip(keys, answer.responses, strict=True):
            kvs = response.response_range.kvs
            seen[key] = _item(kvs[0]) if kvs else None
        return Written(False, answer.header.revision, seen)

    async def grant(self, ttl_s: float) -> Lease:
        """Open a lease; one whose answer was lost ends by itself."""
        request = rpc.LeaseGrantRequest(TTL=math.ceil(ttl_s))
        deadline_s = self.options.deadline_s
        answer = await self._once(
            lambda member: member.lease.LeaseGrant(request, timeout=deadline_s), "grant a lease"
        )
        return Lease(answer.ID, float(answer.TTL))

    async def keep_alive(self, lease: int) -> float:
        """Renew a lease: seconds it now has; 0 when it is gone. Harmless to repeat."""
        answer = await self._once(lambda member: self._renew(member, lease), "keep a lease alive")
        return float(answer.TTL)

    async def revoke(self, lease: int) -> None:
        """End a lease and delete its keys; no error when it is gone."""
        request = rpc.LeaseRevokeRequest(ID=lease)
        member = await self._members.pick()
        try:
            await member.lease.LeaseRevoke(request, timeout=self.options.deadline_s)
        except grpc.aio.AioRpcError as error:
            if error.code() is not grpc.StatusCode.NOT_FOUND:
                raise mapped(error, "revoke a lease", writes=True) from error

    async def compact(self, revision: int) -> None:
        """Forget the history before `revision`, as etcd's own auto-compaction does."""
        request = rpc.CompactionRequest(revision=revision)
        deadline_s = self.options.deadline_s
        await self._once(lambda member: member.kv.Compact(request, timeout=deadline_s), "compact")

    async def watch(self, prefix: str, revision: int) -> AsyncGenerator[Event | Compacted]:
        """Every change below `prefix` from `revision` on, over broken connections and restarts.

        Raises StoreError when no member was reached for `watch_patience_s`.
        """
        loop = asyncio.get_running_loop()
        at, heard = revision, loop.time()
        while True:
            try:
                member = await self._members.pick()
                async with aclosing(self._stream(member, prefix, at)) as responses:
                    async for response in responses:
                        heard = loop.time()
                        if response.compact_revision:
                            yield Compacted(response.compact_revision)
                            return
                        for event in response.events:
                            yield _event(event)
                        if not response.created:  # events, or a note how far all were sent
                            at = max(at, response.header.revision + 1)
            except grpc.aio.AioRpcError as error:
                self._members.avoid(member)
                if not passing(error) or loop.time() - heard > self.options.watch_patience_s:
                    raise mapped(error, f"watch {prefix}", writes=False) from error
            except StoreError:
                if loop.time() - heard > self.options.watch_patience_s:
                    raise
            await asyncio.sleep(RETRY_S)

    async def close(self) -> None:
        """Close all connections."""
        await self._members.close()

    # -- inside ----------------------------------------------------------------------------------

    async def _txn(self, member: Member, request: Any) -> Any:
        return await member.kv.Txn(request, timeout=self.options.deadline_s)

    async def _renew(self, member: Member, lease: int) -> Any:
        call = member.lease.LeaseKeepAlive(timeout=self.options.deadline_s)
        try:
            await call.write(rpc.LeaseKeepAliveRequest(ID=lease))
            answer = await call.read()
        finally:
            call.cancel()
        if answer is grpc.aio.EOF:
            raise StoreError("etcd ended the keep-alive stream without an answer", definite=False)
        return answer

    async def _stream(self, member: Member, prefix: str, at: int) -> AsyncGenerator[Any]:
        create = rpc.WatchCreateRequest(
            key=_bytes(prefix),
            range_end=_bytes(below(prefix)),
            start_revision=at,
            progress_notify=True,
        )
        call = member.watch.Watch(metadata=_NEEDS_LEADER)
        try:
            await call.write(rpc.WatchRequest(create_request=create))
            while (response := await call.read()) is not grpc.aio.EOF:
                yield response
                if response.canceled:
                    return
        finally:
            call.cancel()

    async def _once(self, call: Callable[[Member], Awaitable[_Answer]], what: str) -> _Answer:
        member = await self._members.pick()
        try:
            return await call(member)
        except grpc.aio.AioRpcError as error:
            self._members.avoid(member)
            raise mapped(error, what, writes=True) from error

    async def _repeat(self, call: Callable[[Member], Awaitable[_Answer]], what: str) -> _Answer:
        tries = AsyncRetrying(
            stop=stop_after_attempt(READ_TRIES),
            wait=wait_exponential_jitter(multiplier=RETRY_S, max=RETRY_S_MAX),
            retry=retry_if_exception(lambda e: isinstance(e, grpc.aio.AioRpcError) and passing(e)),
            reraise=True,
        )

        async def one() -> _Answer:
            member = await self._members.pick()
            try:
                return await call(member)
            except grpc.aio.AioRpcError:
                self._members.avoid(member)
                raise

        try:
            return await tries(one)
        except grpc.aio.AioRpcError as error:
            raise mapped(error, what, writes=False) from error


def _text(key: bytes) -> str:
    """A key as text; one that is no UTF-8 gives the same bytes again: pages go on after it."""
    return key.decode(errors="surrogateescape")


def _bytes(key: str) -> bytes:
    """The other way."""
    return key.encode(errors="surrogateescape")


def _range(wanted: Range) -> Any:
    return rpc.RangeRequest(
        key=_bytes(wanted.key),
        range_end=_bytes(wanted.end),
        limit=wanted.limit,
        keys_only=wanted.keys_only,
        revision=wanted.revision,
    )


def _compare(compare: Compare) -> Any:
    create = compare.field == "create"
    return rpc.Compare(
        key=_bytes(compare.key),
        result=rpc.Compare.EQUAL,
        target=rpc.Compare.CREATE if create else rpc.Compare.MOD,
        **{"create_revision" if create else "mod_revision": compare.equals},
    )


def _request(op: Put | Delete) -> Any:
    if isinstance(op, Put):
        put = rpc.PutRequest(key=_bytes(op.key), value=op.value, lease=op.lease)
        return rpc.RequestOp(request_put=put)
    return rpc.RequestOp(request_delete_range=rpc.DeleteRangeRequest(key=_bytes(op.key)))


def _item(kv: Any) -> Item:
    return Item(_text(kv.key), kv.value, kv.create_revision, kv.mod_revision, kv.lease)


def _event(event: Any) -> Event:
    deleted = event.type == event.DELETE
    key = _text(event.kv.key)
    return Event(event.kv.mod_revision, key, None if deleted else _item(event.kv))
