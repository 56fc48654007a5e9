"""A leader that is new waits a moment for a job's shims before it refuses for want of them."""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from coordinator.api.client import OperatorClient
from coordinator.core.errors import Fenced, NoLeader, NotFound, NotReady
from coordinator.server import reign
from coordinator.server.testing import RunningCoordinator, running_coordinator
from coordinator.store.memory import MemoryKeyValue, MemoryStore
from tests.support.cluster import QUICK, cluster, follow
from tests.support.fake_shim import attached

LATE_S = 0.5


@asynccontextmanager
async def taken_over() -> AsyncIterator[tuple[RunningCoordinator, OperatorClient]]:
    """A leader after one that had the job `llm` and a snapshot of it; no shim is there yet."""
    kv = MemoryKeyValue()
    async with cluster(2, store=MemoryStore(kv)) as case:
        assert (await follow(case.client.checkpoint("llm"))).error is None
    async with (
        running_coordinator(store=MemoryStore(kv), policy=QUICK) as new,
        OperatorClient([new.address]) as client,
    ):
        yield new, client


async def test_a_request_that_comes_before_the_shims_waits_for_them() -> None:
    async with taken_over() as (new, client):
        asking = asyncio.create_task(follow(client.checkpoint("llm")))
        planning = asyncio.create_task(client.plan("llm"))
        await asyncio.sleep(LATE_S)
        assert not asking.done()
        async with attached(new.address, 2):
            assert (await asking).error is None
            assert (await planning).plan is not None
            began = time.monotonic()
            assert (await follow(client.restore("llm"))).error is None
            assert time.monotonic() - began < reign.GATHER_S


async def test_it_does_not_wait_for_ever_nor_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reign, "GATHER_S", LATE_S)
    async with taken_over() as (_, client):
        began = time.monotonic()
        went = await follow(client.checkpoint("llm"))
        assert isinstance(went.error, NotReady)
        assert time.monotonic() - began >= LATE_S


async def test_a_job_that_nobody_knew_is_not_waited_for() -> None:
    async with taken_over() as (_, client):
        began = time.monotonic()
        went = await follow(client.checkpoint("other"))
        assert isinstance(went.error, NotFound)
        assert time.monotonic() - began < reign.GATHER_S


async def test_who_waits_hears_of_the_end_of_the_leadership() -> None:
    async with taken_over() as (new, client):
        asking = asyncio.create_task(follow(client.checkpoint("llm")))
        await asyncio.sleep(LATE_S)
        new.reign.stop(Fenced("the test takes the right away"))
        async with asyncio.timeout(reign.GATHER_S):
            went = await asking
        assert isinstance(went.error, NoLeader)
        assert went.error.definite
