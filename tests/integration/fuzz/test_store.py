"""Damaged and foreign values in etcd: named with their key, and other jobs go on."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio
from allstop.v1 import operator_pb2
from hypothesis import given, settings
from hypothesis import strategies as st

from coordinator.api import reading
from coordinator.api.client import OperatorClient
from coordinator.core.errors import AllstopError, BugError, StoreError
from coordinator.server.reign import Reign
from coordinator.server.testing import running_coordinator
from coordinator.store.etcd import EtcdKeyValue, EtcdOptions
from coordinator.store.kv import Put
from coordinator.store.memory import MemoryKeyValue, MemoryStore
from coordinator.store.records import Records
from tests.integration.fuzz.material import EDGES_64, FLOATS
from tests.support.cluster import QUICK, follow
from tests.support.fake_shim import attached

Content = dict[str, bytes]


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def content() -> AsyncIterator[Content]:
    """What a store holds in which two jobs have two snapshots and a restore each."""
    kv = MemoryKeyValue()
    async with running_coordinator(store=MemoryStore(kv), policy=QUICK) as coordinator:
        for job in ("llm", "other"):
            async with (
                attached(coordinator.address, 2, job=job),
                OperatorClient([coordinator.address]) as client,
            ):
                for asked in (client.checkpoint(job), client.checkpoint(job), client.restore(job)):
                    assert (await follow(asked)).error is None
        jobs = [key for key in kv._order if "/jobs/" in key and kv._now(key) is not None]
        jobs.sort(key=lambda key: kv._now(key).create_revision)  # type: ignore[union-attr]
        yield {key: kv._now(key).value for key in jobs}  # type: ignore[union-attr]


JUNK = st.binary(max_size=40) | st.sampled_from(
    [b"", b"{}", b"[]", b"null", b"1e999", b'"x"', b"\xff\xfe", b"{" * 5000, b"[" * 100_000]
)
NAMES = st.sampled_from(
    ["llm", "x", "", ".", "..", "a b", "ü", "\0", "latest", "0", "-1", "99999999999"]
)
SHELVES = st.sampled_from(["attempts", "snapshots", "restores", "workers", "latest", "x", ""])


@st.composite
def keys(draw: Any, content: Content) -> str:
    """A key of job llm, or one near it, but none of the other job's."""
    if draw(st.booleans()):
        return str(draw(st.sampled_from([key for key in content if "/other" not in key])))
    parts = draw(st.lists(NAMES | SHELVES, min_size=1, max_size=5))
    root = draw(st.sampled_from(["/allstop/jobs/", "/allstop/jobs/llm/", "/allstop/nodes/"]))
    return f"{root}{'/'.join(parts)}"


@st.composite
def values(draw: Any, content: Content) -> bytes:
    """Junk, another key's value, or a record in which one field is another."""
    if draw(st.booleans()):
        return bytes(draw(JUNK))
    value = draw(st.sampled_from(list(content.values())))
    try:
        record = json.loads(value)
    except ValueError:
        return bytes(value)
    if not record or draw(st.booleans()):
        return bytes(value)
    field = draw(st.sampled_from([*sorted(record), "of_a_newer_version"]))
    odd = st.sampled_from([None, [], {}, "x", True, *EDGES_64, *FLOATS, [1], {"a": 1}, "2", "HOLD"])
    record[field] = draw(odd)
    return json.dumps(record).encode()


def copy_of(content: Content) -> MemoryKeyValue:
    """A store with this content, put in this order."""
    kv = MemoryKeyValue()
    for key, value in content.items():
        kv._apply((), [Put(key, value)])
    return kv


async def ask_everything(reign: Reign, job: str, ids: list[str]) -> None:
    """Whatever an operator may ask about a job; raises what the last question raised."""
    desk = reign.desk
    error: AllstopError | None = None
    for asking in (
        lambda: reading.list_jobs(desk),
        lambda: reading.list_snapshots(desk, job),
        lambda: reading.plan(desk, operator_pb2.PlanRequest(job=job)),
        *((lambda each=each: reading.show(desk, each)) for each in ids),
    ):
        try:
            await asking()  # type: ignore[operator]
        except AllstopError as met:
            error = met
            if isinstance(met, BugError):
                break
    if error is not None:
        raise error


def ids_of(content: Content, job: str) -> list[str]:
    """Ids of all attempts, snapshots and restores of a job."""
    found = {key.split("/")[5] for key in content if f"/jobs/{job}/" in key and key.count("/") >= 5}
    return sorted(found)


@settings(max_examples=250, deadline=None)
@given(data=st.data())
async def test_any_value_under_any_key(content: Content, data: st.DataObject) -> None:
    kv = copy_of(content)
    damage = data.draw(st.dictionaries(keys(content), values(content), min_size=1, max_size=3))
    for key, value in damage.items():
        kv._apply((), [Put(key, value)])
    store = MemoryStore(kv)
    for error in (await store.load()).damaged:
        assert any(key in str(error) for key in damage), error
    reign = Reign(epoch=store.fence.epoch, coordinator="fuzzed", store=store, policy=QUICK)
    try:
        await reign.begin()
        met: AllstopError | None = None
        try:
            await ask_everything(reign, "llm", [*ids_of(content, "llm"), *ids_of(content, "other")])
        except AllstopError as error:
            met = error
        # what is read and says something else is refused or not found; never a defect
        assert not isinstance(met, BugError), met
        if isinstance(met, StoreError):
            assert any(key.split("/")[3] in str(met) for key in damage), met
        await reading.list_snapshots(reign.desk, "other")
        for each in ids_of(content, "other"):
            shown = await reading.show(reign.desk, each)
            assert shown.ListFields()
        listed = {view.job.job for view in reign.control.jobs()}
        assert "other" in listed
        assert not reign._stopped.is_set()
    finally:
        await reign.close()


async def test_a_damaged_snapshot_does_not_hide_the_others(content: Content) -> None:
    kv = copy_of(content)
    first, second = (key for key in content if "/jobs/llm/snapshots/" in key)
    kv._apply((), [Put(first, b"\xff")])
    store = MemoryStore(kv)
    reign = Reign(epoch=store.fence.epoch, coordinator="fuzzed", store=store, policy=QUICK)
    try:
        await reign.begin()
        reply = await reading.list_snapshots(reign.desk, "llm")
        assert [each.snapshot for each in reply.snapshots] == [second.rpartition("/")[2]]
        (problem,) = reply.problems
        assert first in problem
        planned = await reading.plan(reign.desk, operator_pb2.PlanRequest(job="llm"))
        assert "snapshot" not in planned.failure.kind.lower()
        with pytest.raises(StoreError, match=first):
            await reading.show(reign.desk, first.rpartition("/")[2])
    finally:
        await reign.close()


@pytest.mark.etcd
async def test_keys_that_are_no_text(content: Content, etcd_server: Any) -> None:
    """etcd takes any bytes as a key; they are leapt over, never looked for again and again."""
    prefix = b"/no-text"
    kv = EtcdKeyValue(EtcdOptions((etcd_server.endpoint,)))
    try:
        for key, value in content.items():
            await kv.write([], [Put(key.replace("/allstop", prefix.decode()), value)])
        for odd in (b"/jobs/\xff", b"/jobs/\xff\xfe/attempts/\x80", b"/jobs/llm/snapshots/\xc3"):
            await kv.write([], [Put((prefix + odd).decode(errors="surrogateescape"), b"x")])
        store = Records(kv, prefix=prefix.decode())
        loaded = await store.load()
        assert {job.job for job in loaded.jobs} == {"llm", "other"}
        for error in loaded.damaged:
            str(error).encode()  # can be shown to people
        names = await store.job_names()
        assert {"llm", "other"} <= set(names)
        assert len(await store.snapshots("other")) == 2
        snapshot = (await store.snapshots("other"))[0].snapshot
        assert (await store.snapshot(snapshot)).job == "other"
    finally:
        await kv.close()


@pytest.mark.parametrize("key", ["/allstop/jobs/\0", "/allstop/jobs/", "/allstop/jobs//latest"])
async def test_a_job_that_cannot_be_named_hides_no_other(content: Content, key: str) -> None:
    kv = copy_of(content)
    kv._apply((), [Put(key, b"x")])
    store = MemoryStore(kv)
    for each in ids_of(content, "other"):
        assert await store.show(each)
