"""What the key-value port promises, held against memory and against a real etcd alike."""

import asyncio
from contextlib import aclosing

import pytest

from coordinator.core.errors import StoreError
from coordinator.core.model import AttemptState
from coordinator.store.etcd import EtcdKeyValue
from coordinator.store.kv import COMPACTED, Compacted, Compare, Delete, Event, Put, Range
from coordinator.store.memory import MemoryKeyValue
from coordinator.store.port import Loaded
from tests.contract.material import JOB, WAIT_S, Bench, attempt, begun


async def test_transaction_is_all_or_nothing_and_shows_what_was_compared(bench: Bench) -> None:
    key, other = f"{bench.prefix}/x", f"{bench.prefix}/y"
    made = await bench.kv.write([Compare(key, "create", 0)], [Put(key, b"1")])
    assert made.done
    refused = await bench.kv.write(
        [Compare(key, "mod", made.revision), Compare(other, "create", 5)], [Put(other, b"2")]
    )
    assert not refused.done
    assert refused.seen[other] is None
    assert refused.seen[key] is not None
    assert refused.seen[key].mod_revision == made.revision
    assert (await bench.kv.read(Range(other))).found == ((),)
    changed = await bench.kv.write([Compare(key, "mod", made.revision)], [Put(key, b"3")])
    item = (await bench.kv.read(Range(key))).found[0][0]
    assert (item.create_revision, item.mod_revision) == (made.revision, changed.revision)
    then = await bench.kv.read(Range(key, revision=made.revision))
    assert then.found[0][0].value == b"1"
    with pytest.raises(StoreError, match=r"too many operations|max-txn-ops") as caught:
        await bench.kv.write([], [Put(f"{key}{n}", b"") for n in range(129)])
    assert caught.value.definite


async def compact(bench: Bench, revision: int) -> None:
    """Forget the history before `revision`."""
    if isinstance(bench.kv, MemoryKeyValue):
        bench.kv.compact(revision)
    else:
        assert isinstance(bench.kv, EtcdKeyValue)
        await bench.kv.compact(revision)


async def test_reading_pages_and_ranges(bench: Bench) -> None:
    keys = [f"{bench.prefix}/p/{number:03}" for number in range(60)]
    await bench.kv.write([], [Put(key, b"v") for key in keys])
    view = await bench.kv.read(
        Range(keys[10], keys[50], limit=3, keys_only=True), Range(keys[0]), Range(keys[0] + "x")
    )
    assert [item.key for item in view.found[0]] == keys[10:13]
    assert view.found[0][0].value == b""
    assert [item.value for item in view.found[1]] == [b"v"]
    assert view.found[2] == ()


async def test_watch_tells_puts_and_deletes_below_its_prefix_from_a_revision(bench: Bench) -> None:
    inside, outside = f"{bench.prefix}/w/a", f"{bench.prefix}/x"
    first = await bench.kv.write([], [Put(inside, b"1")])
    await bench.kv.write([], [Put(outside, b"2")])
    watch = bench.kv.watch(f"{bench.prefix}/w/", first.revision)
    async with aclosing(watch) as changes, asyncio.timeout(WAIT_S):
        put = await anext(changes)
        await bench.kv.write([], [Delete(inside)])
        gone = await anext(changes)
    assert isinstance(put, Event)
    assert put.item is not None
    assert (put.key, put.item.value, put.revision) == (inside, b"1", first.revision)
    assert gone == Event(first.revision + 2, inside, None)


async def test_compacted_history_is_told_and_read_anew(bench: Bench) -> None:
    store = await bench.store()
    first = await bench.kv.write([], [Put(f"{bench.prefix}/c", b"1")])
    await store.put_job(JOB)
    await begun(store, "a1")
    now = (await store.load()).revision
    await compact(bench, now)
    with pytest.raises(StoreError) as caught:
        await bench.kv.read(Range(f"{bench.prefix}/c", revision=first.revision))
    assert COMPACTED in caught.value.details
    old = bench.kv.watch(bench.prefix, first.revision)
    async with aclosing(old) as changes, asyncio.timeout(WAIT_S):
        assert await anext(changes) == Compacted(now)
        with pytest.raises(StopAsyncIteration):
            await anext(changes)
    async with aclosing(store.watch()) as news, asyncio.timeout(WAIT_S):
        whole = await anext(news)
    assert isinstance(whole, Loaded)
    assert whole.attempts == (attempt("a1", AttemptState.ADMITTING),)


async def test_lease_ends_by_itself_and_takes_its_keys_along(bench: Bench) -> None:
    lease = await bench.kv.grant(1.0)
    key = f"{bench.prefix}/leased"
    put = await bench.kv.write([], [Put(key, b"1", lease.lease)])
    assert await bench.kv.keep_alive(lease.lease) == lease.ttl_s
    async with aclosing(bench.kv.watch(key, put.revision + 1)) as changes, asyncio.timeout(WAIT_S):
        gone = await anext(changes)
    assert isinstance(gone, Event)
    assert gone.item is None
    assert await bench.kv.keep_alive(lease.lease) == 0
    await bench.kv.revoke(lease.lease)
    with pytest.raises(StoreError, match="lease") as caught:
        await bench.kv.write([], [Put(key, b"1", lease.lease)])
    assert caught.value.definite
