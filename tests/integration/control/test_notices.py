"""Notices over real gRPC while the store is away, and the shim that comes after one that goes."""

from __future__ import annotations

import pytest
from allstop.v1 import shim_pb2

from coordinator.core.drain_records import DrainRecord, DrainState
from coordinator.core.errors import StoreError
from coordinator.core.model import Snapshot
from coordinator.store.memory import MemoryStore
from tests.integration.control.test_drain import drained, places
from tests.integration.control.test_recovery import until
from tests.support.cluster import cluster, follow
from tests.support.fake_shim import FakeShim

SPOT = shim_pb2.NoticeGiven(
    kind=shim_pb2.NOTICE_KIND_DRAIN, deadline_ms=20_000, why="spot: terminate"
)


class Away(MemoryStore):
    """Cannot be read, or takes no drain, as long as a test says so."""

    reads = drains = True

    async def snapshot(self, snapshot: str) -> Snapshot:
        """The reading that a drain begins with."""
        if not self.reads:
            raise StoreError("etcd is away")
        return await super().snapshot(snapshot)

    async def put_drain(self, record: DrainRecord) -> None:
        """The write that a drain begins with."""
        if not self.drains:
            raise StoreError("etcd is away")
        await super().put_drain(record)


@pytest.mark.parametrize("what", ["reads", "drains"])
async def test_a_notice_while_the_store_is_away_is_told_again_and_taken(what: str) -> None:
    store = Away()
    async with cluster(2, spares=1, store=store) as case:
        assert (await follow(case.client.checkpoint("llm"))).error is None
        shim = case.shims[1]
        setattr(store, what, False)
        await shim.say(notice=SPOT)
        await shim.until(lambda: len(shim.refused) == 1)
        (told,) = shim.refused
        assert (told.kind, told.again) == (SPOT.kind, True)
        assert "etcd is away" in told.reason
        setattr(store, what, True)
        await shim.say(notice=SPOT)
        await until(case.client.nodes, lambda nodes: any(view.drain for view in nodes))
        assert (await drained(case)).state is DrainState.DRAINED
        assert await places(case) == ("node-0", "node-2")


async def test_the_next_shim_of_a_node_that_went_takes_workers() -> None:
    async with cluster(2, spares=1) as case:
        shim = case.shims[1]
        await shim.say(notice=SPOT)
        await until(case.client.nodes, lambda nodes: any(view.drain for view in nodes))
        assert (await drained(case)).state is DrainState.DRAINED
        await shim.leave()
        async with FakeShim(case.address, "node-1"):
            nodes = await until(case.client.nodes, lambda nodes: nodes[1].drain is None)
            assert nodes[1].state == "attached"
            await until(case.coordinator.store.load, lambda loaded: loaded.drains == ())
            case.shims[2].vanish()
            await until(case.client.nodes, lambda nodes: nodes[2].state == "lost")
            (job,) = await case.client.jobs()
            ended = await follow(case.client.restore(job.job.job))
            assert ended.error is None
            assert await places(case) == ("node-0", "node-1")
