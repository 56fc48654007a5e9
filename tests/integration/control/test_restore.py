"""A restore over real gRPC: plan, orders, who wins, who is refused, and what is cleared away."""

from collections.abc import AsyncGenerator

import pytest

from coordinator.api.values import ActionEvent
from coordinator.core.errors import (
    AllstopError,
    Busy,
    NoPlan,
    NotFound,
    OldRunUnseen,
    Refused,
    RestoreFailed,
)
from coordinator.core.model import Phase, RestoreState, Snapshot
from coordinator.store.memory import Fault, MemoryStore
from tests.support.cluster import Cluster, Followed, cluster, follow
from tests.support.fake_shim import Behaviour

ROUND = [Phase.FETCH, Phase.CLEAR, Phase.RESTORE, Phase.OPEN, Phase.RELEASE]


async def saved(case: Cluster) -> Snapshot:
    """A committed snapshot of the job."""
    went = await follow(case.client.checkpoint("llm"))
    assert went.last.snapshot is not None, went.error
    return went.last.snapshot


async def lose(case: Cluster, index: int) -> None:
    """A node vanishes; returns when the coordinator knows."""
    case.shims[index].vanish()
    node = case.shims[index].node
    for _ in range(1000):
        views = {view.facts.node: view.state for view in await case.client.nodes()}
        if views[node] == "lost":
            return
    raise AssertionError(f"{node} is {views[node]}")


def orders_since(case: Cluster, index: int, action: str) -> list[Phase]:
    return case.shims[index].phases(action)


async def test_the_lost_worker_moves_and_the_others_stay() -> None:
    async with cluster(2, spares=1, ranks=2) as case:
        snapshot = await saved(case)
        await lose(case, 1)
        planned = await case.client.plan("llm")
        assert planned.plan is not None
        went = await follow(case.client.restore("llm"))
        assert went.error is None
        restore = went.last.restore
        assert restore is not None
        assert restore.state is RestoreState.RUNNING
        assert restore.plan == planned.plan
        places = {each.worker: each.to_node for each in restore.plan.placements}
        assert places == {0: "node-0", 1: "node-2"}
        (moved,) = restore.plan.addresses
        assert (moved.old, moved.new) == (
            case.shims[1].facts.address,
            case.shims[2].facts.address,
        )
        for index in (0, 2):
            assert orders_since(case, index, restore.restore) == ROUND
            order = next(
                order for order in case.shims[index].orders if order.HasField("restore")
            ).restore
            assert [(move.old, move.new) for move in order.addresses] == [(moved.old, moved.new)]
            assert (order.incarnation, order.workers) == (2, 2)
        (job,) = await case.client.jobs()
        assert (job.job.incarnation, job.state) == (2, "running")
        assert job.nodes == ("node-0", "node-2")
        again = await saved(case)
        assert again.incarnation == 2
        assert again.snapshot != snapshot.snapshot


async def test_a_job_that_is_cut_off_as_a_whole_is_not_run_twice() -> None:
    async with cluster(2, spares=2) as case:
        await saved(case)
        for index in (0, 1):
            await lose(case, index)
        planned = await case.client.plan("llm")
        assert planned.plan is not None
        assert "worker 0 was on node-0, which is lost" in planned.unseen
        went = await follow(case.client.restore("llm"))
        assert isinstance(went.error, OldRunUnseen)
        assert planned.unseen in went.error.what
        assert not any(case.shims[index].orders for index in (2, 3))
        sure = await follow(case.client.restore("llm", old_run_ended=True))
        assert sure.error is None
        (job,) = await case.client.jobs()
        assert (job.job.incarnation, job.nodes) == (2, ("node-2", "node-3"))
        assert not (await case.client.plan("llm")).unseen


async def test_a_lost_node_that_returns_is_fenced_and_changes_nothing() -> None:
    async with cluster(2, spares=1) as case:
        await saved(case)
        await lose(case, 1)
        assert (await follow(case.client.restore("llm"))).error is None
        back = case.shims[1]
        await back.attach()
        await back.until(lambda: bool(back.fenced))
        assert [worker.worker for worker in back.fenced[0].workers] == [1]
        assert not back.workers
        (job,) = await case.client.jobs()
        assert (job.state, job.nodes) == ("running", ("node-0", "node-2"))


async def test_no_fitting_node_refuses_at_once_with_reasons_for_each() -> None:
    async with cluster(2) as case:
        await saved(case)
        await lose(case, 1)
        before = len(case.shims[0].orders)
        went = await follow(case.client.restore("llm"))
        assert isinstance(went.error, NoPlan)
        assert any("node-1" in line for line in went.error.details)
        planned = await case.client.plan("llm")
        assert planned.plan is None
        assert planned.failure is not None
        assert planned.failure.kind == "NoPlan"
        assert {each.node for each in planned.refused} >= {"node-1"}
        assert len(case.shims[0].orders) == before
        (job,) = await case.client.jobs()
        assert job.job.incarnation == 1


async def test_ids_that_cannot_be_restored() -> None:
    async with cluster(2, behaviours={1: Behaviour(fail={Phase.DUMP: "no"})}) as case:
        for snapshot in ("", "llm-20200101-000000-ffffff"):
            went = await follow(case.client.restore("llm", snapshot))
            assert isinstance(went.error, NotFound)
        failed = await follow(case.client.checkpoint("llm"))
        attempt = failed.last.action
        went = await follow(case.client.restore("llm", attempt))
        assert type(went.error) is Refused
        assert "never committed" in str(went.error)
        assert "ABORTED" in str(went.error)
        with pytest.raises(Refused, match="never committed"):
            await case.client.plan("llm", attempt)
        assert isinstance((await follow(case.client.restore("nobody"))).error, NotFound)


async def started(events: AsyncGenerator[ActionEvent, None]) -> str:
    return (await anext(events)).action


async def test_of_two_at_once_one_wins() -> None:
    async with cluster(2, spares=1, behaviours={0: Behaviour(late_s={Phase.CLEAR: 0.3})}) as case:
        snapshot = await saved(case)
        await lose(case, 1)
        first = case.client.restore("llm", snapshot.snapshot)
        action = await started(first)
        second = await follow(case.client.restore("llm", snapshot.snapshot))
        assert isinstance(second.error, Busy)
        assert action in str(second.error)
        checkpoint = await follow(case.client.checkpoint("llm"))
        assert isinstance(checkpoint.error, Busy)
        assert (await follow(first)).error is None
        (job,) = await case.client.jobs()
        assert job.job.incarnation == 2


@pytest.mark.parametrize("phase", [Phase.FETCH, Phase.CLEAR, Phase.RESTORE, Phase.RELEASE])
@pytest.mark.parametrize("how", ["fails", "vanishes"])
async def test_a_failed_restore_is_cleared_away_and_tried_again(phase: Phase, how: str) -> None:
    async with cluster(2, spares=2) as case:
        await saved(case)
        await lose(case, 1)
        spare = case.shims[2]
        if how == "fails":
            spare.behaviour.fail[phase] = "criu: Can't fork for 1001: File exists"
        else:
            spare.behaviour.vanish.add(phase)
        went = await follow(case.client.restore("llm"))
        assert_failed(went, spare.node)
        restore = went.last.restore
        assert restore is not None
        assert restore.state is RestoreState.FAILED
        kept = case.shims[0]
        await kept.until(lambda: Phase.UNDO in kept.phases(restore.restore))
        undo = next(order for order in kept.orders if order.HasField("undo"))
        assert undo.undo.kill
        if how == "fails":
            await spare.leave()
        again = await follow(case.client.restore("llm"))
        assert again.error is None
        (job,) = await case.client.jobs()
        assert (job.job.incarnation, job.state) == (3, "running")
        assert set(job.nodes) == {"node-0", "node-3"}


def assert_failed(went: Followed, node: str) -> None:
    assert isinstance(went.error, AllstopError)
    assert went.last.state == RestoreState.FAILED
    assert isinstance(went.error, RestoreFailed) or went.error.where.node == node
    assert node in f"{went.error} {went.error.details}"


@pytest.mark.parametrize("fault", [Fault.LOST_NOT_APPLIED, Fault.LOST_APPLIED])
async def test_an_admission_whose_answer_was_lost_is_asked_for_again(fault: Fault) -> None:
    store = MemoryStore()
    async with cluster(2, spares=1, store=store) as case:
        await saved(case)
        await lose(case, 1)
        store.memory.fail_next(fault, "/restores/")
        went = await follow(case.client.restore("llm"))
        assert went.error is None
        assert case.shims[2].phases().count(Phase.FETCH) == 1
        (job,) = await case.client.jobs()
        assert job.job.incarnation == 2
