"""A node that is emptied, over real gRPC: moved, refused, put back, called off, and its leader."""

from __future__ import annotations

import asyncio

import pytest
from allstop.v1 import shim_pb2

from coordinator.core.drain_records import DrainRecord, DrainState, DrainStep
from coordinator.core.errors import NoPlan, NotFound, NotReady
from coordinator.core.model import Phase
from tests.integration.control.test_recovery import until
from tests.support.cluster import Cluster, cluster, follow
from tests.support.fake_shim import Behaviour

D = DrainState


async def drained(case: Cluster, node: str = "node-1") -> DrainRecord:
    """Wait until the drain of a node has come to an end."""

    async def look() -> DrainRecord:
        views = {view.facts.node: view for view in await case.client.nodes()}
        return views[node].drain or DrainRecord(node, D.UNDRAINED)

    return await until(look, lambda record: record.state not in (D.DRAINING, D.UNDRAINING))


async def places(case: Cluster) -> tuple[str, ...]:
    (job,) = await case.client.jobs()
    return job.nodes


async def test_a_job_is_moved_and_the_node_takes_nobody_until_it_is_undrained() -> None:
    async with cluster(2, spares=1) as case:
        begun = await case.client.drain("node-1", why="a new kernel")
        assert begun.state is D.DRAINING
        record = await drained(case)
        assert (record.state, record.why) == (D.DRAINED, "a new kernel")
        (moved,) = record.jobs
        assert (moved.job, moved.step) == ("llm", DrainStep.MOVED)
        assert await places(case) == ("node-0", "node-2")
        stored = await case.coordinator.store.load()
        assert stored.drains == (record,)
        shown = await case.client.show(moved.snapshot)
        assert shown.attempt is not None
        assert shown.attempt.stop
        assert (await case.client.drain("node-1")).state is D.DRAINED

        case.shims[2].vanish()
        planned = await case.client.plan("llm")
        assert planned.failure is not None
        reasons = {each.node: " ".join(each.reasons) for each in planned.refused}
        assert "it is drained: a new kernel" in reasons["node-1"]
        assert (await case.client.undrain("node-1")).state is D.UNDRAINED
        assert (await case.coordinator.store.load()).drains == ()
        ended = await follow(case.client.restore("llm"))
        assert ended.error is None
        assert await places(case) == ("node-0", "node-1")


async def test_what_cannot_be_is_refused_and_nothing_is_stopped() -> None:
    async with cluster(2) as case:
        with pytest.raises(NoPlan) as told:
            await case.client.drain("node-1")
        assert any("it is to be drained" in line for line in told.value.details)
        with pytest.raises(NotFound):
            await case.client.drain("node-9")
        with pytest.raises(NotFound):
            await case.client.undrain("node-1")
        assert not any(shim.orders for shim in case.shims)
        (job,) = await case.client.jobs()
        assert job.state == "running"


async def test_too_little_time_is_refused_by_what_checkpoints_have_taken() -> None:
    slow = {0: Behaviour(late_s={Phase.PERSIST: 1.0})}
    async with cluster(2, spares=1, behaviours=slow) as case:
        assert (await follow(case.client.checkpoint("llm"))).error is None
        with pytest.raises(NotReady, match="cannot end in the time allowed"):
            await case.client.drain("node-1", deadline_s=0.5)
        await case.client.drain("node-1", deadline_s=20.0)
        assert (await drained(case)).state is D.DRAINED


async def test_a_job_that_no_other_node_takes_after_all_is_put_back() -> None:
    async with cluster(2, spares=1) as case:
        case.shims[2].behaviour = Behaviour(fail={Phase.FETCH: "a test"})
        await case.client.drain("node-1")
        record = await drained(case)
        assert record.state is D.FAILED
        assert "job llm stayed" in record.reason
        assert await places(case) == ("node-0", "node-1")
        (job,) = await case.client.jobs()
        assert job.state == "running"


async def test_two_nodes_are_emptied_at_once() -> None:
    async with cluster(2, spares=2) as case:
        await asyncio.gather(case.client.drain("node-0"), case.client.drain("node-1"))
        assert (await drained(case, "node-0")).state is D.DRAINED
        assert (await drained(case, "node-1")).state is D.DRAINED
        assert await places(case) == ("node-2", "node-3")


async def test_a_shim_that_is_told_to_go_has_its_node_drained() -> None:
    async with cluster(2, spares=1) as case:
        notice = shim_pb2.NoticeGiven(
            kind=shim_pb2.NOTICE_KIND_DRAIN, deadline_ms=20_000, why="its shim was told SIGTERM"
        )
        await case.shims[1].say(notice=notice)
        await until(case.client.nodes, lambda nodes: any(view.drain for view in nodes))
        record = await drained(case)
        assert (record.state, record.why) == (D.DRAINED, "its shim was told SIGTERM")
        assert await places(case) == ("node-0", "node-2")


@pytest.mark.parametrize("kind", ["NOTICE_KIND_CHECKPOINT", "NOTICE_KIND_DRAIN"])
async def test_a_notice_saves_what_stays_where_it_is(kind: str) -> None:
    """A checkpoint that was asked for, or one for want of other nodes."""
    async with cluster(2) as case:
        number = shim_pb2.NoticeKind.Value(kind)
        await case.shims[1].say(notice=shim_pb2.NoticeGiven(kind=number, deadline_ms=20_000))
        await until(lambda: case.client.snapshots("llm"), lambda found: bool(found.latest))
        assert await places(case) == ("node-0", "node-1")


async def test_a_notice_that_is_refused_is_answered_with_the_reason() -> None:
    slow = {0: Behaviour(late_s={Phase.PERSIST: 1.0})}
    async with cluster(2, behaviours=slow) as case:
        assert (await follow(case.client.checkpoint("llm"))).error is None
        shim = case.shims[1]
        orders = len(shim.orders)
        kind = shim_pb2.NOTICE_KIND_DRAIN
        await shim.say(notice=shim_pb2.NoticeGiven(kind=kind, deadline_ms=300, why="SIGTERM"))
        await shim.until(lambda: len(shim.refused) == 2)  # nor is there time to save it at least
        assert [told.kind for told in shim.refused] == [kind, shim_pb2.NOTICE_KIND_CHECKPOINT]
        assert all("cannot end in the time allowed" in told.reason for told in shim.refused)
        assert len(shim.orders) == orders, "nobody was held"
        (job,) = await case.client.jobs()
        assert job.state == "running"


async def test_a_notice_to_stop_stops_the_whole_job_once() -> None:
    async with cluster(2) as case:
        stop = shim_pb2.NoticeGiven(
            kind=shim_pb2.NOTICE_KIND_STOP, deadline_ms=20_000, why="its shim was told SIGTERM"
        )
        for shim in case.shims:
            await shim.say(notice=stop)
        found = await until(lambda: case.client.snapshots("llm"), lambda found: bool(found.latest))
        shown = await case.client.show(found.latest)
        assert shown.attempt is not None
        assert (shown.attempt.stop, shown.attempt.cause) == (True, stop.why)
        for shim in case.shims:
            await shim.until(lambda shim=shim: Phase.STOP in shim.phases())  # type: ignore[misc]


async def test_a_notice_that_is_no_kind_of_ours_ends_the_stream() -> None:
    async with cluster(1) as case:
        await case.shims[0].say(notice=shim_pb2.NoticeGiven(kind=77))  # type: ignore[arg-type]
        lost = await until(case.client.nodes, lambda nodes: nodes[0].state == "lost")
        assert "kind 77 of NoticeGiven is not known" in lost[0].reason
