"""A checkpoint over real gRPC: request, orders, answers, commit, and what refuses or undoes it."""

from collections.abc import AsyncIterator

import pytest

from coordinator.codec import number_of
from coordinator.core.errors import (
    AttemptFailed,
    BadRequest,
    Busy,
    DeadlinePassed,
    DriverError,
    NotFound,
    NotReady,
    all_kinds,
)
from coordinator.core.model import AttemptState, Cut, Finding, Phase, Severity
from coordinator.store.election import Election
from coordinator.store.etcd import EtcdKeyValue, EtcdOptions
from coordinator.store.memory import Fault, MemoryStore
from coordinator.store.port import Store
from coordinator.store.records import Records
from tests.support.cluster import Cluster, cluster, follow
from tests.support.fake_shim import Behaviour

WORK = [Phase.HOLD, Phase.PARK, Phase.DUMP]


@pytest.fixture(params=["memory", pytest.param("etcd", marks=pytest.mark.etcd)])
async def store(request: pytest.FixtureRequest) -> AsyncIterator[tuple[Store, int]]:
    """A store to lead in, and the epoch: in memory, or elected in a real etcd."""
    if request.param == "memory":
        memory = MemoryStore()
        yield memory, memory.fence.epoch
        return
    server = request.getfixturevalue("etcd_server")
    prefix = f"/test-{request.node.name}"
    kv = EtcdKeyValue(EtcdOptions((server.endpoint,)))
    right = await Election(kv, "test", prefix=prefix).campaign(timeout_s=10)
    yield Records(kv, right, prefix), right.epoch
    await right.resign()
    await kv.close()


async def test_all_ranks_are_saved_at_one_step_and_committed(store: tuple[Store, int]) -> None:
    async with cluster(3, ranks=2, store=store[0], epoch=store[1]) as case:
        went = await follow(case.client.checkpoint("llm"))
        assert went.error is None
        snapshot, attempt = went.last.snapshot, went.last.attempt
        assert snapshot is not None
        assert attempt is not None
        assert attempt.state is AttemptState.COMMITTED
        steps = {rank.boundary for worker in snapshot.workers for rank in worker.ranks}
        # boundaries were 100, 101, 100: the target is one more than the furthest
        assert steps == {102} == {snapshot.step}
        assert snapshot.world_size == 6
        assert [len(worker.ranks) for worker in snapshot.workers] == [2, 2, 2]
        assert all(worker.manifest for worker in snapshot.workers)
        assert (snapshot.epoch, attempt.pause_ms) == (store[1], 7)
        for shim in case.shims:
            orders = shim.phases(snapshot.snapshot)
            assert orders[:3] == WORK
            assert sorted(orders[3:]) == [Phase.PERSIST, Phase.RESUME]
            assert all(order.hold_ms > order.deadline_ms for order in shim.orders[:3])
        shown = await case.client.show(snapshot.snapshot)
        assert shown.snapshot == snapshot
        assert (await case.client.snapshots("llm")).latest == snapshot.snapshot
        (job,) = await case.client.jobs()
        assert (job.job.latest, job.state, job.action) == (snapshot.snapshot, "running", "")
        replayed = await follow(case.client.watch(snapshot.snapshot))
        assert replayed.last.state == "COMMITTED"


async def test_with_stop_the_job_ends_only_after_the_commit() -> None:
    async with cluster(2) as case:
        went = await follow(case.client.checkpoint("llm", stop=True))
        assert went.error is None
        assert went.last.snapshot is not None
        for shim in case.shims:
            assert shim.phases() == [*WORK, Phase.PERSIST, Phase.STOP]
        states = list(dict.fromkeys(event.state for event in went.events))
        assert states.index("COMMITTING") < states.index("STOPPING") < states.index("COMMITTED")


async def test_a_freeze_cut_needs_no_hold() -> None:
    async with cluster(2) as case:
        went = await follow(case.client.checkpoint("llm", cut=Cut.FREEZE))
        assert went.error is None
        for shim in case.shims:
            assert shim.phases()[0] is Phase.DUMP
            assert not {Phase.HOLD, Phase.PARK} & set(shim.phases())


async def test_bytes_of_persist_reach_the_operator() -> None:
    behaviours = {0: Behaviour(progress=((50, 100), (100, 100)), late_s={Phase.PERSIST: 0.05})}
    async with cluster(1, behaviours=behaviours) as case:
        went = await follow(case.client.checkpoint("llm"))
        assert (100, 100) in {(event.done_bytes, event.total_bytes) for event in went.events}


async def test_a_second_one_is_refused_with_the_id_of_the_first() -> None:
    async with cluster(2, behaviours={0: Behaviour(late_s={Phase.PARK: 0.5})}) as case:
        first = case.client.checkpoint("llm")
        action = (await anext(first)).action
        second = await follow(case.client.checkpoint("llm"))
        assert isinstance(second.error, Busy)
        assert action in str(second.error)
        (job,) = await case.client.jobs()
        assert (job.state, job.action) == ("checkpointing", action)
        assert (await follow(first)).error is None


async def test_leaving_does_not_stop_it_and_watching_joins_it() -> None:
    async with cluster(2, behaviours={0: Behaviour(late_s={Phase.PARK: 0.3})}) as case:
        asking = case.client.checkpoint("llm")
        action = (await anext(asking)).action
        await asking.aclose()
        went = await follow(case.client.watch(action))
        assert went.error is None
        assert went.last.state == "COMMITTED"


async def test_an_operator_can_give_it_up() -> None:
    async with cluster(2, behaviours={1: Behaviour(mute={Phase.PARK})}) as case:
        asking = case.client.checkpoint("llm")
        action = (await anext(asking)).action
        await case.shims[1].until(lambda: Phase.PARK in case.shims[1].phases())
        await case.client.abort(action, "changed my mind")
        went = await follow(asking)
        assert isinstance(went.error, AttemptFailed)
        assert "changed my mind" in str(went.error)
        assert "ended already" in await case.client.abort(action)
        with pytest.raises(NotFound):
            await case.client.abort("llm-nothing")


async def test_a_rank_that_does_not_arrive_is_named() -> None:
    async with cluster(2, ranks=2, behaviours={1: Behaviour(mute={Phase.PARK})}) as case:
        went = await follow(case.client.checkpoint("llm"))
        assert isinstance(went.error, DeadlinePassed)
        text = f"{went.error} {went.error.details}"
        assert "node-1" in text
        assert "worker 1" in text
        assert went.last.attempt is not None
        assert went.last.attempt.state is AttemptState.ABORTED
        await assert_all_undone(case)


async def test_one_phase_may_have_a_deadline_of_its_own() -> None:
    async with cluster(2, ranks=2, behaviours={1: Behaviour(mute={Phase.DUMP})}) as case:
        asked = case.client.checkpoint("llm", phase_deadlines_s={Phase.DUMP: 0.4, Phase.PARK: 3.0})
        went = await follow(asked)
        assert isinstance(went.error, DeadlinePassed)
        assert "DUMP was not answered within 0.4 s: awaited worker 1 on node-1" in str(went.error)
        dump = next(o for o in case.shims[0].orders if number_of(Phase.DUMP) == o.phase)
        park = next(o for o in case.shims[0].orders if number_of(Phase.PARK) == o.phase)
        assert (dump.deadline_ms, park.deadline_ms) == (400, 3_000)
        await assert_all_undone(case)
        for phase, seconds in ((Phase.RELEASE, 1.0), (Phase.DUMP, -1.0), (Phase.DUMP, 1e300)):
            went = await follow(case.client.checkpoint("llm", phase_deadlines_s={phase: seconds}))
            assert isinstance(went.error, BadRequest), (phase, seconds)


async def test_a_failing_dump_undoes_all_and_keeps_the_words_of_criu() -> None:
    words = "Error (criu/cr-dump.c): Unknown shit 600 (anon_inode:[io_uring])"
    async with cluster(3, behaviours={1: Behaviour(fail={Phase.DUMP: words})}) as case:
        went = await follow(case.client.checkpoint("llm"))
        assert isinstance(went.error, all_kinds()["AllstopError"])
        assert isinstance(went.error, AttemptFailed | DriverError)
        assert words in " ".join([str(went.error), *went.error.details])
        assert "node-1" in str(went.error)
        assert (await case.client.snapshots("llm")).snapshots == ()
        await assert_all_undone(case)
        again = await follow(case.client.checkpoint("llm"))
        assert again.error is not None  # still failing, but the job was free to be tried again


async def test_findings_refuse_before_anything_is_held() -> None:
    finding = Finding(Severity.REFUSE, "io_uring", "rank 0 has an io_uring", rank=0)
    async with cluster(1, behaviours={0: Behaviour(findings=(finding,))}) as case:
        went = await follow(case.client.checkpoint("llm"))
        assert went.error is not None
        assert "io_uring" in f"{went.error} {went.error.details}"
        assert Phase.PARK not in case.shims[0].phases()


async def test_bad_requests_name_what_is_wrong() -> None:
    async with cluster(1) as case:
        for job, kind in (("nobody", NotFound), ("../etc", BadRequest), ("", BadRequest)):
            went = await follow(case.client.checkpoint(job))
            assert type(went.error) is kind, job
        went = await follow(case.client.checkpoint("llm", deadline_s=-1))
        assert isinstance(went.error, BadRequest)
        with pytest.raises(NotFound):
            await case.client.show("llm-nothing")
        with pytest.raises(NotFound):
            await case.client.snapshots("nobody")
        assert not case.shims[0].orders


async def test_a_job_that_lacks_a_worker_is_not_ready() -> None:
    async with cluster(2) as case:
        await case.shims[1].leave()
        went = await follow(case.client.checkpoint("llm"))
        assert isinstance(went.error, NotReady)
        assert "1" in str(went.error)
        assert not case.shims[0].orders


@pytest.mark.parametrize(
    ("fault", "committed"), [(Fault.LOST_APPLIED, True), (Fault.LOST_APPLIED_LATER, False)]
)
async def test_a_lost_answer_to_the_commit_is_settled_by_looking(
    fault: Fault, committed: bool
) -> None:
    store = MemoryStore()
    async with cluster(2, store=store) as case:
        store.memory.fail_next(fault, "/snapshots/")
        went = await follow(case.client.checkpoint("llm"))
        store.memory.deliver()
        assert (went.error is None) == committed
        snapshots = (await case.client.snapshots("llm")).snapshots
        assert len(snapshots) == committed
        assert (await follow(case.client.checkpoint("llm"))).error is None  # and the job goes on


async def assert_all_undone(case: Cluster) -> None:
    """Every shim that is still there was told to undo."""
    for shim in case.shims:
        await shim.until(lambda shim=shim: Phase.UNDO in shim.phases())  # type: ignore[misc]
