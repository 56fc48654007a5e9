"""Sick GPUs, over real gRPC and a real store: drained, restored elsewhere, suspect, and told."""

from __future__ import annotations

import pytest
from allstop.v1 import records_pb2, shim_pb2

from coordinator.core.drain_records import DrainState
from coordinator.core.errors import NotFound
from coordinator.core.job_policy import JobPolicy, OnFailure
from coordinator.core.model import Snapshot
from coordinator.core.view import NodeView
from tests.integration.control.test_drain import drained, places
from tests.integration.control.test_recovery import saved, told, until
from tests.support.cluster import Cluster, cluster, follow

LEAVE = JobPolicy("llm", on_failure=OnFailure.LEAVE)
XID, ECC = records_pb2.TROUBLE_KIND_XID, records_pb2.TROUBLE_KIND_ECC


async def has(
    case: Cluster, node: int, *codes: int, fresh: bool = True, kind: records_pb2.TroubleKind = XID
) -> None:
    """A shim tells all that its first GPU has."""
    uuid = f"GPU-node-{node}-0"
    troubles = [
        records_pb2.GpuTrouble(uuid=uuid, kind=kind, code=code, count=1, source="nvml", fresh=fresh)
        for code in codes
    ]
    await case.shims[node].say(troubles=shim_pb2.GpuTroubles(troubles=troubles))


async def shown(case: Cluster, node: int, word: str) -> NodeView:
    """Wait until `allstop nodes` says that word about a node's GPUs."""
    views = await until(
        case.client.nodes, lambda found: any(word in line for line in found[node].health)
    )
    return views[node]


async def commit(case: Cluster) -> Snapshot:
    """One more snapshot."""
    followed = await follow(case.client.checkpoint("llm"))
    assert followed.error is None
    assert followed.last.snapshot is not None
    return followed.last.snapshot


async def test_what_cannot_be_saved_is_restored_elsewhere_and_the_story_says_so() -> None:
    async with cluster(2, spares=1, gpus=2) as case:
        await saved(case)
        (before,) = (await case.client.snapshots("llm")).snapshots
        await has(case, 1, 79)
        await told(case, "Xid 79", "it is given up at step", f"runs from {before.snapshot}")
        assert await places(case) == ("node-0", "node-2")
        view = await shown(case, 1, "[restore]")
        assert view.facts.gpus[0].sick == "Xid 79, it has fallen off the bus"
        assert not view.facts.gpus[1].sick
        assert len((await case.client.snapshots("llm")).snapshots) == 1


async def test_what_can_be_saved_is_drained() -> None:
    async with cluster(2, spares=1, gpus=2) as case:
        await saved(case)
        await has(case, 1, 64)
        await until(case.client.nodes, lambda nodes: nodes[1].drain is not None)
        record = await drained(case)
        assert record.state is DrainState.DRAINED
        assert "Xid 64" in record.why
        assert record.deadline_unix_s - record.requested_unix_s == 600
        assert await places(case) == ("node-0", "node-2")
        await told(case, "Xid 64", "[drain]")
        assert len((await case.client.snapshots("llm")).snapshots) == 2


async def test_a_node_with_a_sick_gpu_takes_no_workers() -> None:
    async with cluster(2, spares=2, gpus=2) as case:
        await saved(case)
        await has(case, 2, 79, fresh=False)
        await shown(case, 2, "[restore]")
        planned = await case.client.plan("llm")
        assert planned.plan is not None
        case.shims[1].vanish()
        await told(case, "runs from")
        assert await places(case) == ("node-0", "node-3")
        planned = await case.client.plan("llm")
        reasons = {each.node: " ".join(each.reasons) for each in planned.refused}
        assert "GPU 0 (GPU-node-2-0) is sick: Xid 79" in reasons["node-2"]


async def test_suspect_snapshots_are_no_default_and_can_be_named() -> None:
    async with cluster(2, spares=1, gpus=2) as case:
        await case.client.set_policy(LEAVE)
        await has(case, 1, 48, fresh=False)
        await shown(case, 1, "Xid 48")
        first = await commit(case)
        assert first.suspect.startswith("node-1: GPU 0 (GPU-node-1-0): Xid 48")
        refused = (await follow(case.client.restore("llm"))).error
        assert isinstance(refused, NotFound)
        assert f"--snapshot {first.snapshot}" in refused.advice
        assert "is suspect" in refused.what
        with pytest.raises(NotFound):
            await case.client.plan("llm")

        planned = await case.client.plan("llm", first.snapshot)
        assert planned.plan is not None
        assert any("the snapshot is suspect" in note for note in planned.plan.notes)
        named = await follow(case.client.restore("llm", first.snapshot))
        assert named.error is None
        assert named.last.restore is not None
        assert "the snapshot is suspect" in named.last.restore.reason
        assert (await case.client.nodes())[1].workers == ()  # its GPU is not used any more

        good = await commit(case)
        assert good.suspect == ""
        stored = await case.coordinator.store.snapshots("llm")
        assert [bool(each.suspect) for each in stored] == [True, False]


async def test_the_newest_good_one_is_what_is_restored_by_default() -> None:
    async with cluster(2, spares=1, gpus=2) as case:
        good = await commit(case)
        await has(case, 1, 0, fresh=False, kind=ECC)
        await shown(case, 1, "memory errors")
        bad = await commit(case)
        assert bad.suspect
        planned = await case.client.plan("llm")
        assert planned.plan is not None
        assert planned.plan.snapshot == good.snapshot
        assert any("it is not the newest, which is suspect" in n for n in planned.plan.notes)
        restored = (await follow(case.client.restore("llm"))).last.restore
        assert restored is not None
        assert restored.snapshot == good.snapshot


@pytest.mark.parametrize("good_one", [True, False])
async def test_a_drain_prefers_a_good_snapshot_to_its_own_suspect_one(good_one: bool) -> None:
    async with cluster(2, spares=1, gpus=2) as case:
        before = await commit(case) if good_one else None
        await has(case, 1, 48, fresh=False)
        await shown(case, 1, "Xid 48")
        await case.client.drain("node-1")
        record = await drained(case)
        assert record.state is DrainState.DRAINED
        (job,) = record.jobs
        assert (await case.client.show(job.snapshot)).snapshot.suspect  # type: ignore[union-attr]
        stored = await case.coordinator.store.load()
        assert stored.replaced[0].snapshot == (before.snapshot if before else job.snapshot)
        assert await places(case) == ("node-0", "node-2")


async def test_a_recovery_has_nothing_where_all_snapshots_are_suspect() -> None:
    async with cluster(2, spares=1, gpus=2) as case:
        await has(case, 1, 48, fresh=False)
        await shown(case, 1, "Xid 48")
        await saved(case)
        case.shims[0].vanish()
        await told(case, "given up", "no snapshot that can be relied on")


@pytest.mark.parametrize("field", ["kind", "count", "code", "index", "many"])
async def test_what_makes_no_sense_ends_the_stream(field: str) -> None:
    async with cluster(1) as case:
        trouble = records_pb2.GpuTrouble(uuid="GPU-1", kind=XID, code=79)
        if field == "kind":
            trouble.ClearField("kind")
        elif field != "many":
            setattr(trouble, field, -5)
        troubles = [trouble] * (2000 if field == "many" else 1)
        await case.shims[0].say(troubles=shim_pb2.GpuTroubles(troubles=troubles))
        await until(case.client.nodes, lambda nodes: nodes[0].state == "lost")
