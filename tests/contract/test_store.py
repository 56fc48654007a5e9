"""What every store keeps, held against memory and against a real etcd alike."""

import asyncio
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from coordinator.codec import encode
from coordinator.core.drain_records import DrainedJob, DrainRecord, DrainState, DrainStep
from coordinator.core.errors import BugError, Fenced, NotFound, StoreError
from coordinator.core.job_policy import (
    JobHistory,
    JobPolicy,
    JobRecovery,
    NodeHistory,
    RecoveryState,
    StoryLine,
    When,
)
from coordinator.core.model import AttemptState, Cut, JobRecord, RankState, RestoreState
from coordinator.core.snapshot import digest_of
from coordinator.store.kv import Delete, Put
from coordinator.store.records import Records
from tests.contract.material import (
    JOB,
    Bench,
    attempt,
    begun,
    commit,
    committed,
    latest,
    node,
    restore,
    snapshot,
    worker,
)

# -- reading and writing ---------------------------------------------------------------------------


async def test_empty_store_is_empty(bench: Bench) -> None:
    store = await bench.store()
    loaded = await store.load()
    assert (loaded.jobs, loaded.attempts, loaded.restores, loaded.damaged) == ((), (), (), ())
    assert await store.snapshots("llm") == ()
    assert await store.nodes() == ()
    for question in (store.snapshot("s"), store.show("s"), store.show("s", "llm")):
        with pytest.raises(NotFound, match="s"):
            await question


async def test_what_was_put_is_loaded_by_the_next_leader(bench: Bench) -> None:
    first = await bench.store()
    await first.put_job(JOB)
    await first.put_job(replace(JOB, job="llm-2", world_size=8))
    await committed(first, "a1")
    await begun(first, "a2")
    await first.put_attempt(attempt("a2", AttemptState.DUMPING))
    await begun(first, "a3")
    await first.put_attempt(attempt("a3", AttemptState.ABORTED))
    await first.admit_restore(restore("r1", "a1"), 1)
    await bench.rights[0].resign()

    second = await bench.store()
    loaded = await second.load()
    assert loaded.jobs == (
        replace(JOB, incarnation=2, latest="a1"),
        replace(JOB, job="llm-2", world_size=8),
    )
    assert loaded.attempts == (attempt("a2", AttemptState.DUMPING),)
    assert loaded.restores == (restore("r1", "a1"),)
    await second.put_attempt(attempt("a2", AttemptState.ABORTED))
    await second.put_restore(replace(restore("r1", "a1"), state=RestoreState.FAILED))
    assert (await second.load()).attempts == (await second.load()).restores == ()


async def test_a_run_begins_above_every_earlier_incarnation(bench: Bench) -> None:
    store = await bench.store()
    fresh = JobRecord("llm", 2, 0, 1)
    assert await store.begin_run(fresh, 0) == fresh
    await store.put_job(replace(JOB, incarnation=1))
    await committed(store, "a1")
    bigger = replace(fresh, workers=3, latest="nonsense")
    assert await store.begin_run(bigger, 1) == replace(fresh, workers=3, incarnation=2)
    assert await store.begin_run(fresh, 7) == replace(fresh, incarnation=8)
    loaded = await store.load()
    assert loaded.jobs == (replace(fresh, incarnation=8, latest="a1"),)
    assert loaded.latest_unix_s == {"llm": 2.5}
    with pytest.raises(StoreError, match="it is at 8"):
        await store.admit_restore(restore("r1", "a1", incarnation=2), 1)


async def test_two_runs_begun_at_once_have_two_incarnations(bench: Bench) -> None:
    right = await bench.lead()
    stores = [await bench.store(right), await bench.store(right)]
    begun = await asyncio.gather(*(s.begin_run(JobRecord("llm", 2, 0, 1), 0) for s in stores))
    assert sorted(each.incarnation for each in begun) == [1, 2]


async def test_job_never_goes_back_and_keeps_latest(bench: Bench) -> None:
    store = await bench.store()
    await store.put_job(JOB)
    await committed(store, "a1")
    await store.put_job(replace(JOB, incarnation=3, latest="nonsense"))
    assert (await store.load()).jobs == (replace(JOB, incarnation=3, latest="a1"),)
    with pytest.raises(StoreError, match="incarnation 3 already") as caught:
        await store.put_job(replace(JOB, incarnation=2))
    assert caught.value.definite


async def test_nodes_are_published_and_go_with_the_leader(bench: Bench) -> None:
    right = await bench.lead()
    store = await bench.store(right)
    await store.put_nodes([node("n0"), node("n1")])
    await store.put_nodes([replace(node("n1"), address="10.0.0.9")])
    assert await store.nodes() == (node("n0"), replace(node("n1"), address="10.0.0.9"))
    await store.put_nodes([], ["n0"])
    await store.put_nodes([], ["n0"])
    many = [node(f"m{number}") for number in range(250)]
    await store.put_nodes(many, ["n7"])
    assert len(await store.nodes()) == 251
    await store.put_nodes([], [each.node for each in many])
    assert [each.node for each in await store.nodes()] == ["n1"]
    await right.resign()
    assert await store.nodes() == ()


@pytest.mark.parametrize("name", ["", "a/b", "a\0b"])
async def test_names_that_would_leave_their_place_are_refused(bench: Bench, name: str) -> None:
    store = await bench.store()
    with pytest.raises(Exception, match="cannot be the name of a job"):
        await store.put_job(replace(JOB, job=name))


# -- fence and compare-and-set ---------------------------------------------------------------------


async def test_deposed_leader_changes_nothing(bench: Bench) -> None:
    old = await bench.store()
    await committed(old, "a1")
    await begun(old, "a2")
    await bench.kv.revoke(bench.rights[0].lease)  # behind its back, as etcd ends a lease
    new = await bench.store()
    assert bench.rights[1].epoch > bench.rights[0].epoch
    before = await new.load()
    writes: list[Callable[[Records], object]] = [
        lambda s: s.put_attempt(attempt("a2", AttemptState.HOLDING)),
        lambda s: s.put_job(replace(JOB, incarnation=9)),
        lambda s: s.begin_run(replace(JOB, incarnation=9), 8),
        lambda s: commit(s, "a2"),
        lambda s: s.admit_restore(restore("r1", "a1"), 1),
        lambda s: s.put_nodes([node("n0")]),
        lambda s: s.find_commit("llm", "a2"),
    ]
    for write in writes:
        stale = await bench.store(bench.rights[0])
        stale._seen = dict(old._seen)  # each write must be stopped by etcd's own comparison
        bench.rights[0]._lost.clear()
        with pytest.raises(Fenced, match=r"epoch \d+ has ended"):
            await write(stale)  # type: ignore[misc]
    assert replace(await new.load(), revision=0) == replace(before, revision=0)
    assert await new.nodes() == ()
    with pytest.raises(Fenced):  # and it knows by itself from then on
        bench.rights[0].check()


async def test_replica_without_a_fence_reads_only(bench: Bench) -> None:
    leader = await bench.store()
    await committed(leader, "a1")
    replica = Records(bench.kv, None, bench.prefix)
    assert (await replica.load()).jobs == (await leader.load()).jobs
    with pytest.raises(Fenced, match="does not lead"):
        await replica.put_job(JOB)


async def test_record_changed_by_another_is_not_overwritten_unseen(bench: Bench) -> None:
    right = await bench.lead()
    one, two = await bench.store(right), await bench.store(right)
    await begun(one, "a1")
    with pytest.raises(StoreError, match="attempts/a1 was changed by somebody else") as caught:
        await begun(two, "a1")
    assert caught.value.definite
    await two.put_attempt(attempt("a1", AttemptState.HOLDING))  # it was told, so now it may
    with pytest.raises(StoreError, match="changed by somebody else"):
        await one.put_attempt(attempt("a1", AttemptState.PARKING))
    assert (await one.load()).attempts == (attempt("a1", AttemptState.HOLDING),)


# -- the commit ------------------------------------------------------------------------------------


async def test_commit_is_seen_whole_or_not_at_all(bench: Bench) -> None:
    store = await bench.store()
    await store.put_job(JOB)
    await begun(store, "a1")
    await store.put_workers("llm", "a1", [worker(0)])
    with pytest.raises(NotFound):
        await store.snapshot("a1")
    assert await latest(store) == ""
    await commit(store, "a1")
    assert await store.snapshot("a1") == await store.snapshot("a1", "llm") == snapshot("a1")
    assert await store.snapshots("llm") == (replace(snapshot("a1"), workers=()),)
    assert await latest(store) == "a1"
    shown = await store.show("a1")
    assert shown.snapshot == snapshot("a1")
    assert shown.attempt == attempt("a1", AttemptState.COMMITTED)
    assert shown.restore is None


async def test_commit_twice_is_one_commit(bench: Bench) -> None:
    store = await bench.store()
    await committed(store, "a1")
    revision = (await store.load()).revision
    await commit(store, "a1")
    assert (await store.load()).revision == revision
    others = (worker(0, digest="other"), worker(1))
    other = replace(snapshot("a1"), workers=others, digest=digest_of(others))
    with pytest.raises(StoreError, match=f"digest {snapshot('a1').digest}"):
        await store.commit(other, attempt("a1", AttemptState.COMMITTED))


async def test_committed_attempt_is_never_undone(bench: Bench) -> None:
    store = await bench.store()
    await begun(store, "a1")
    await store.commit(snapshot("a1"), attempt("a1", AttemptState.STOPPING))
    for state in (AttemptState.ABORTING, AttemptState.ABORTED):
        with pytest.raises(StoreError, match="was committed") as caught:
            await store.put_attempt(attempt("a1", state))
        assert caught.value.definite
    await store.put_attempt(attempt("a1", AttemptState.COMMITTED))
    assert (await store.show("a1")).attempt == attempt("a1", AttemptState.COMMITTED)


async def test_latest_never_goes_back(bench: Bench) -> None:
    store = await bench.store()
    await begun(store, "z-first")
    await begun(store, "a-second")
    assert await commit(store, "a-second")
    assert not await commit(store, "z-first")
    assert await commit(store, "a-second")  # asked again
    assert not await commit(store, "z-first")
    assert await latest(store) == "a-second"
    assert [each.snapshot for each in await store.snapshots("llm")] == ["a-second", "z-first"]
    await committed(store, "m-third")
    assert await latest(store) == "m-third"


async def test_commit_of_an_older_incarnation_is_refused(bench: Bench) -> None:
    store = await bench.store()
    await committed(store, "a1")
    await begun(store, "a2")
    await store.admit_restore(restore("r1", "a1"), 1)
    with pytest.raises(StoreError, match="restored meanwhile") as caught:
        await commit(store, "a2")
    assert caught.value.definite
    assert await store.find_commit("llm", "a2") is None
    await begun(store, "a3", incarnation=2)
    await commit(store, "a3", incarnation=2)
    assert await latest(store) == "a3"


async def test_commit_that_makes_no_sense_is_our_own_bug(bench: Bench) -> None:
    store = await bench.store()
    done = attempt("a1", AttemptState.COMMITTED)
    with pytest.raises(BugError, match="was not stored before"):
        await store.commit(snapshot("a1"), done)
    await begun(store, "a1")
    whole = snapshot("a1")
    doubled = (worker(0), worker(0))
    moved = (worker(0), replace(worker(1), ranks=(RankState(1, 0, 1001, 151, True),)))
    for broken, record in [
        (whole, attempt("a1", AttemptState.PERSISTING)),
        (whole, attempt("a2", AttemptState.COMMITTED)),
        (replace(whole, workers=()), done),
        (replace(whole, workers=whole.workers[:1]), done),
        (replace(whole, workers=doubled, digest=digest_of(doubled)), done),
        (replace(whole, workers=moved, digest=digest_of(moved)), done),
    ]:
        with pytest.raises(BugError):
            await store.commit(broken, record)
    assert await store.snapshots("llm") == ()


async def test_find_commit_settles_both_ways(bench: Bench) -> None:
    store = await bench.store()
    assert await store.find_commit("llm", "a0") is None
    await committed(store, "a1")
    assert await store.find_commit("llm", "a1") == snapshot("a1")
    await begun(store, "a2")
    other = await bench.store(bench.rights[0])  # its commit is planned, then a2 is settled
    await other.load()
    assert await store.find_commit("llm", "a2") is None
    with pytest.raises(StoreError, match="changed by somebody else") as caught:
        await commit(other, "a2")
    assert caught.value.definite
    await store.put_attempt(attempt("a2", AttemptState.ABORTED))


async def test_large_worlds_are_written_in_batches(bench: Bench) -> None:
    store = await bench.store()
    await begun(store, "a1")
    big = tuple(replace(worker(number), command=("x" * 8000,)) for number in range(300))
    await store.put_workers("llm", "a1", big[:150])
    before = (await store.load()).revision
    await store.commit(
        replace(snapshot("a1", 300), workers=big), attempt("a1", AttemptState.COMMITTED)
    )
    assert (await store.load()).revision - before == 3  # half was there: two batches, the commit
    assert (await store.snapshot("a1")).workers == big
    await begun(store, "a3")  # behind more keys than one page holds
    assert (await store.load()).attempts == (attempt("a3", AttemptState.ADMITTING),)
    huge = replace(worker(0), command=("x" * 2_000_000,))
    await begun(store, "a2")
    with pytest.raises(StoreError, match=r"workers/0 would be \d+ bytes") as caught:
        await store.put_workers("llm", "a2", [huge])
    assert caught.value.definite


async def test_snapshot_whose_workers_are_others_now_is_refused_by_name(bench: Bench) -> None:
    store = await bench.store()
    await committed(store, "a1")
    await bench.kv.write([], [Delete(store.keys.worker("llm", "a1", 1))])
    with pytest.raises(StoreError, match="a1 is not whole in the store: the 1 workers"):
        await store.snapshot("a1")
    other = encode(worker(1, digest="other"))
    await bench.kv.write([], [Put(store.keys.worker("llm", "a1", 1), other)])
    with pytest.raises(StoreError, match="a1 is not whole in the store: the 2 workers"):
        await store.snapshot("a1")


async def test_frozen_ranks_are_committed_wherever_they_were(bench: Bench) -> None:
    store = await bench.store()
    await begun(store, "a1")
    members = (replace(worker(0), ranks=()), worker(1))
    frozen = replace(snapshot("a1"), cut=Cut.FREEZE, workers=members, digest=digest_of(members))
    await store.commit(frozen, attempt("a1", AttemptState.COMMITTED))
    assert await store.snapshot("a1") == frozen


async def test_commit_and_restore_at_once_never_both_win(bench: Bench) -> None:
    right = await bench.lead()
    store, other = await bench.store(right), await bench.store(right)
    await committed(store, "a1")
    await begun(store, "a2")
    real = bench.kv.write

    async def write_after_a_restore(*arguments: Any) -> Any:
        if any("/snapshots/" in op.key for op in arguments[1]):
            bench.kv.write = real  # type: ignore[method-assign]
            await other.admit_restore(restore("r1", "a1"), 1)
        return await real(*arguments)

    bench.kv.write = write_after_a_restore  # type: ignore[method-assign]
    with pytest.raises(StoreError, match="restored meanwhile"):
        await commit(store, "a2")
    assert await latest(store) == "a1"
    assert [each.snapshot for each in await store.snapshots("llm")] == ["a1"]


# -- policies and histories ------------------------------------------------------------------------


async def test_drains_are_loaded_by_the_next_leader_until_they_are_called_off(bench: Bench) -> None:
    first = await bench.store()
    jobs = (DrainedJob("llm", DrainStep.MOVING, "a1", "why", 1),)
    drain = DrainRecord("node-1", DrainState.DRAINING, "kernel", "reason", 5.0, 65.0, jobs)
    gone = DrainRecord("node-2", DrainState.DRAINED)
    for written in (DrainRecord("node-1"), drain, gone, replace(gone, state=DrainState.UNDRAINED)):
        await first.put_drain(written)
    await bench.rights[0].resign()
    loaded = await (await bench.store()).load()
    assert loaded.drains == (drain,)
    assert not loaded.damaged
    with pytest.raises(Fenced):
        await first.put_drain(drain)


async def test_a_policy_and_a_history_are_loaded_by_the_next_leader(bench: Bench) -> None:
    first = await bench.store()
    await first.put_job(JOB)
    policy = JobPolicy("llm", When.AUTO, Cut.FREEZE, mtbf_s=3600.0, budget=0.02, set_unix_s=5.0)
    early = JobPolicy("not-there-yet", When.STEPS, interval_steps=7)
    history = JobHistory("llm", 90.5, 1, (NodeHistory("n0", 90.5, 0), NodeHistory("n1", 3.0, 2)))
    for written in (JobPolicy("llm", When.SECONDS, interval_s=9.0), policy, early):
        await first.put_policy(written)
    await first.put_history(JobHistory("llm", 1.0))
    await first.put_history(history)
    lines = (StoryLine(1.5, "the run has ended"), StoryLine(2.5, "waits for nodes"))
    recovery = JobRecovery(
        "llm", RecoveryState.WAITING, "node-2 is lost", skipped=("a1",), story=lines
    )
    await first.put_recovery(JobRecovery("llm"))
    await first.put_recovery(recovery)
    await bench.rights[0].resign()

    second = await bench.store()
    loaded = await second.load()
    assert set(loaded.policies) == {policy, early}
    assert loaded.histories == (history,)
    assert loaded.recoveries == (recovery,)
    assert [job.job for job in loaded.jobs] == ["llm"]
    with pytest.raises(Fenced):
        await first.put_policy(JobPolicy("llm"))
    assert set((await second.load()).policies) == {policy, early}


async def test_a_policy_that_cannot_be_read_is_reported_and_can_be_set_anew(bench: Bench) -> None:
    store = await bench.store()
    await store.put_job(JOB)
    key = store.keys.policy("llm")
    await bench.kv.write((), (Put(key, b'{"job":"llm","when":"WHEN_SOMETIMES"}'),))
    loaded = await store.load()
    assert loaded.policies == ()
    assert loaded.damaged[0].where.job == "llm"
    assert key in str(loaded.damaged[0])
    await store.put_policy(JobPolicy("llm"))
    assert (await store.load()).policies == (JobPolicy("llm"),)
