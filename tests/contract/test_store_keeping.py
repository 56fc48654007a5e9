"""How snapshots are kept, marked and forgotten, against memory and against a real etcd alike."""

import asyncio
from dataclasses import replace

import pytest

from coordinator.core.errors import Busy, NotFound, Overtaken, Refused, StoreError
from coordinator.core.kept import KeptImages, Retention
from coordinator.core.model import AttemptState, RestoreState
from coordinator.store.kv import Put, Range, below
from coordinator.store.records import Records
from tests.contract.material import (
    JOB,
    Bench,
    attempt,
    begun,
    commit,
    committed,
    latest,
    restore,
    snapshot,
)

KEPT = (KeptImages("manifests/0", "d0"), KeptImages("manifests/1", "d0"))
POLICY = Retention(keep_last=2, keep_for_s=3600.0)


async def keys_below(bench: Bench, rest: str) -> list[str]:
    prefix = f"{bench.prefix}/jobs/llm/{rest}"
    found = (await bench.kv.read(Range(prefix, below(prefix)))).found[0]
    return [item.key.removeprefix(prefix) for item in found]


async def test_snapshots_are_loaded_in_the_order_of_their_commits(bench: Bench) -> None:
    store = await bench.store()
    await begun(store, "a9")
    for name in ("a2", "a1"):
        await committed(store, name)
    loaded = await store.load()
    assert [each.snapshot for each in loaded.snapshots] == ["a2", "a1"]
    assert all(each.stores == ("store-1",) and not each.workers for each in loaded.snapshots)


async def test_a_job_keeps_its_retention_whatever_becomes_of_it(bench: Bench) -> None:
    store = await bench.store()
    with pytest.raises(NotFound):
        await store.set_retention("llm", POLICY)
    await store.put_job(JOB)
    await store.set_retention("llm", POLICY)
    await store.put_job(replace(JOB, world_size=3))
    begun_again = await store.begin_run(JOB, 1)
    await committed_as(store, "a1", begun_again.incarnation)
    await store.admit_restore(restore("r1", "a1", begun_again.incarnation + 1), 2)
    assert (await store.load()).jobs[0].retention == POLICY
    await store.set_retention("llm", None)
    assert (await store.load()).jobs[0].retention is None


async def committed_as(store: Records, name: str, incarnation: int) -> None:
    await begun(store, name, incarnation=incarnation)
    await commit(store, name, incarnation=incarnation)


async def test_a_pin_stands_against_deletion_until_it_is_taken_away(bench: Bench) -> None:
    store = await bench.store()
    for name in ("a1", "a2"):
        await committed(store, name)
    pinned = await store.set_pin("llm", "a1", "the paper", 7.0)
    assert (pinned.pinned, pinned.pinned_unix_s) == ("the paper", 7.0)
    with pytest.raises(Refused, match="the paper"):
        await store.mark_deleting("llm", "a1", "old", latest_too=False)
    assert (await store.snapshots("llm"))[0] == pinned
    assert not (await store.set_pin("llm", "a1", "", 8.0)).pinned_unix_s
    await store.mark_deleting("llm", "a1", "old", latest_too=False)
    with pytest.raises(Refused, match="being deleted"):
        await store.set_pin("llm", "a1", "too late", 9.0)
    with pytest.raises(NotFound):
        await store.set_pin("llm", "a9", "nothing", 9.0)


async def test_what_is_marked_is_restored_no_more_and_forgotten_whole(bench: Bench) -> None:
    store = await bench.store()
    for name in ("a1", "a2"):
        await committed(store, name)
    with pytest.raises(StoreError, match="not marked"):
        await store.forget_snapshot("llm", "a1")
    for _ in range(2):  # done twice it changes nothing
        await store.mark_deleting("llm", "a1", "old", latest_too=False)
    with pytest.raises(Overtaken, match="being deleted"):
        await store.admit_restore(restore("r1", "a1"), 1)
    for _ in range(2):
        await store.forget_snapshot("llm", "a1")
    assert await keys_below(bench, "snapshots/") == ["a2"]
    assert await keys_below(bench, "attempts/") == ["a1", "a2", "a2/workers/0", "a2/workers/1"]
    with pytest.raises(NotFound):
        await store.admit_restore(restore("r1", "a1"), 1)


async def test_latest_goes_only_with_the_last_snapshot(bench: Bench) -> None:
    store = await bench.store()
    await committed(store, "a1")
    with pytest.raises(Refused, match="newest"):
        await store.mark_deleting("llm", "a1", "all", latest_too=False)
    assert await latest(store) == "a1"
    await store.mark_deleting("llm", "a1", "all", latest_too=True)
    assert await latest(store) == ""
    await committed(store, "a2")
    assert await latest(store) == "a2"


async def test_whoever_is_over_must_have_ended_in_the_store_too(bench: Bench) -> None:
    store = await bench.store()
    for name in ("a1", "a2"):
        await committed(store, name)
    based = replace(attempt("a3", AttemptState.PERSISTING), base="a1")
    await begun(store, "a3")
    await store.put_attempt(based)
    await store.admit_restore(restore("r1", "a1"), 1)
    users = ["a3", "r1", "never-recorded"]
    for ends in ([], ["a3"], ["r1"]):
        if "a3" in ends:
            await store.put_attempt(replace(based, state=AttemptState.ABORTED))
        if "r1" in ends:
            await store.put_restore(replace(restore("r1", "a1"), state=RestoreState.FAILED))
            break
        with pytest.raises(Busy, match="a3" if not ends else "r1"):
            await store.mark_deleting("llm", "a1", "old", latest_too=False, users=users)
    await store.mark_deleting("llm", "a1", "old", latest_too=False, users=users)


@pytest.mark.parametrize("first", ["restore", "deletion"])
async def test_of_a_restore_and_a_deletion_at_once_one_is_refused(bench: Bench, first: str) -> None:
    store = await bench.store()
    for name in ("a1", "a2"):
        await committed(store, name)
    admitting = store.admit_restore(restore("r1", "a1"), 1)
    marking = store.mark_deleting("llm", "a1", "old", latest_too=False)
    if first == "restore":
        await admitting
        await marking  # the core knows of the restore, and asks for this only when it is over
    else:
        await marking
        with pytest.raises(Overtaken):
            await admitting


async def test_two_writers_of_one_epoch_cannot_admit_and_mark_over_each_other(
    bench: Bench,
) -> None:
    """What each has read is held against what is there when it writes."""
    right = await bench.lead()
    one, two = await bench.store(right), await bench.store(right)
    for name in ("a1", "a2"):
        await committed(one, name)
    await one.load()
    done = await asyncio.gather(
        one.admit_restore(restore("r1", "a1"), 1),
        two.mark_deleting("llm", "a1", "old", latest_too=False),
        return_exceptions=True,
    )
    marked = (await one.snapshots("llm"))[0].deleting
    admitted = bool(await keys_below(bench, "restores/"))
    assert (done[0] is None, done[1] is None) == (admitted, bool(marked))


async def test_attempts_are_weighed_by_their_records(bench: Bench) -> None:
    store = await bench.store()
    for name in ("a1", "a2", "gone"):
        await committed(store, name)
    await committed(store, "a9")
    for name in ("a2", "gone"):
        await store.mark_deleting("llm", name, "old", latest_too=False)
    await store.forget_snapshot("llm", "gone")
    await begun(store, "under-way")
    await begun(store, "aborted")
    await store.put_attempt(attempt("aborted", AttemptState.ABORTED))
    there = ["a1", "a2", "a9", "aborted", "gone", "stranger", "under-way"]
    weighed = await store.weigh("llm", there, ["a2"])
    assert weighed.dead == ("a2", "aborted", "gone")
    assert weighed.unknown == ("stranger",)
    assert weighed.keep == KEPT * 2
    assert "a2" not in (await store.weigh("llm", there, [])).dead  # it has a cleaning of its own
    assert (await store.weigh("llm", [], ["a1"])).dead == ()  # it is not marked


async def test_a_damaged_record_keeps_everything(bench: Bench) -> None:
    store = await bench.store()
    await committed(store, "a1")
    await bench.kv.write([], [Put(f"{bench.prefix}/jobs/llm/snapshots/a2", b"garbage")])
    with pytest.raises(StoreError, match="a2"):
        await store.weigh("llm", ["a2", "a3"], [])


async def test_what_was_found_is_kept_with_the_snapshot(bench: Bench) -> None:
    store = await bench.store()
    await committed(store, "a1")
    found = await store.set_verified("llm", "a1", "chunk 7 is missing", 5.0)
    assert found == replace(
        snapshot("a1"), workers=(), damaged="chunk 7 is missing", verified_unix_s=5.0
    )
    assert (await store.set_verified("llm", "a1", "", 6.0)).damaged == ""
