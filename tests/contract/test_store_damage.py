"""Damaged and foreign values are named and keep nobody else down; what changes is watched."""

import asyncio
from contextlib import aclosing
from dataclasses import replace

import pytest

from coordinator.codec import encode
from coordinator.core.errors import StoreError
from coordinator.core.model import AttemptState
from coordinator.store.kv import Delete, Put, Range
from coordinator.store.port import Changed, Loaded
from tests.contract.material import (
    JOB,
    WAIT_S,
    Bench,
    attempt,
    begun,
    committed,
    latest,
    snapshot,
)


async def test_damaged_value_is_named_and_keeps_nobody_else_down(bench: Bench) -> None:
    store = await bench.store()
    await store.put_job(JOB)
    keys = store.keys
    await bench.kv.write(
        [],
        [
            Put(keys.job("bad"), b"\xff\x00"),
            Put(keys.attempt("llm", "a9"), b'{"attempt": "a8", "job": "llm"}'),
            Put(keys.snapshot("llm", "s9"), b"{}"),
        ],
    )
    loaded = await store.load()
    assert [each.job for each in loaded.jobs] == ["llm"]
    named = " ".join(each.what for each in loaded.damaged)
    assert keys.job("bad") in named
    assert keys.attempt("llm", "a9") in named
    with pytest.raises(StoreError, match=f"{keys.prefix}/jobs/llm/snapshots/s9"):
        await store.snapshot("s9", "llm")
    with pytest.raises(StoreError, match="changed by somebody else"):  # not overwritten unseen
        await begun(store, "a9")


async def test_foreign_and_senseless_values_keep_nobody_else_down(bench: Bench) -> None:
    store = await bench.store()
    await committed(store, "a1")
    keys = store.keys
    foreign = {
        keys.latest("bad"): b"a/b",
        keys.latest("worse"): b"",
        keys.job("huge"): encode(replace(JOB, job="huge", workers=2**31 - 1)),
        keys.job("less"): encode(replace(JOB, job="less", incarnation=-1)),
        keys.attempt("nan", "a1"): b'{"attempt": "a1", "job": "nan", "state": 1, "cut": 1, '
        b'"deadline_s": "NaN"}',
        keys.attempt("owed", "a1"): encode(
            replace(attempt("a1", AttemptState.ABORTED, "owed"), owed=(4,))
        ),
    }
    ignored = {
        f"{keys.jobs}": b"?",
        f"{keys.jobs}/attempts/a1": encode(attempt("a1", AttemptState.HOLDING, "zzz")),
        f"{keys.jobs}x//": b"?",
        f"{keys.prefix}/elsewhere": b"?",
    }
    await bench.kv.write([], [Put(key, value) for key, value in (foreign | ignored).items()])
    loaded = await store.load()
    named = {each.what.split("the value of ")[1].split()[0] for each in loaded.damaged}
    assert named == foreign.keys()
    assert {each.where.job for each in loaded.damaged} == {
        "bad", "worse", "huge", "less", "nan", "owed"
    }  # fmt: skip
    assert [(each.job, each.latest) for each in loaded.jobs] == [("llm", "a1")]
    assert (await store.show("a1", "llm")).snapshot is not None
    assert (await store.snapshot("a1")).snapshot == "a1"
    await committed(store, "a2")
    assert await latest(store) == "a2"


async def test_what_is_owed_and_the_last_committed_attempts_are_loaded(bench: Bench) -> None:
    store = await bench.store()
    await store.put_job(JOB)
    owing = replace(
        attempt("a0", AttemptState.ABORTED), nodes=("node-0", "node-1"), owed=(1,), keep=True
    )
    await store.put_attempt(owing)
    for number in range(1, 8):
        name = f"a{number}"
        await begun(store, name)
        record = replace(attempt(name, AttemptState.COMMITTED), requested_unix_s=float(number))
        await store.commit(snapshot(name), record)
    await bench.rights[0].resign()
    store = await bench.store()
    loaded = await store.load()
    assert loaded.attempts == (owing,)
    assert [each.attempt for each in loaded.recent] == ["a3", "a4", "a5", "a6", "a7"]
    await store.put_attempt(replace(owing, owed=()))
    assert (await store.load()).attempts == ()


async def test_value_of_another_record_under_a_key_is_named(bench: Bench) -> None:
    store = await bench.store()
    await committed(store, "a1")
    item = (await bench.kv.read(Range(store.keys.snapshot("llm", "a1")))).found[0][0]
    await bench.kv.write([], [Put(store.keys.snapshot("llm", "a2"), item.value)])
    with pytest.raises(StoreError, match="snapshots/a2 in the store is of another snapshot: a1"):
        await store.snapshot("a2", "llm")


async def test_jobs_whose_names_begin_alike_are_kept_apart(bench: Bench) -> None:
    store = await bench.store()
    names = ["llm", "llm-b", "llm.c", "llm0"]
    for name in names:
        await store.put_job(replace(JOB, job=name))
        await begun(store, f"{name}-1", name)
        await store.commit(
            snapshot(f"{name}-1", job=name), attempt(f"{name}-1", AttemptState.COMMITTED, name)
        )
    assert sorted(await store.job_names()) == sorted(names)
    assert {each.job: each.latest for each in (await store.load()).jobs} == {
        name: f"{name}-1" for name in names
    }
    assert (await store.snapshot("llm-b-1")).job == "llm-b"


async def test_watch_gives_everything_then_each_change(bench: Bench) -> None:
    store = await bench.store()
    await store.put_job(JOB)
    async with aclosing(store.watch()) as news, asyncio.timeout(WAIT_S):
        first = await anext(news)
        assert isinstance(first, Loaded)
        assert first.jobs == (JOB,)
        await committed(store, "a1")
        changes = [await anext(news) for _ in range(4)]
        assert all(isinstance(each, Changed) for each in changes)
        records = [each.record for each in changes if isinstance(each, Changed)]
        assert records[0] == attempt("a1", AttemptState.ADMITTING)
        assert attempt("a1", AttemptState.COMMITTED) in records[1:]
        assert replace(snapshot("a1"), workers=()) in records[1:]
        assert replace(JOB, latest="a1") in records[1:]
        await bench.kv.write([], [Put(store.keys.job("bad"), b"?"), Delete(store.keys.job("llm"))])
        last = {each.key: each for each in [await anext(news), await anext(news)]}  # type: ignore[union-attr]
        assert last[store.keys.job("llm")].record is None
        assert last[store.keys.job("bad")].damaged is not None
