"""Writes whose answer is lost: applied, not applied, or applied later, in any order."""

import contextlib
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coordinator.core.errors import AllstopError, Fenced, NotFound, StoreError
from coordinator.core.model import AttemptState, JobRecord, RestoreState
from coordinator.store.memory import Fault, MemoryStore
from coordinator.store.records import Records
from tests.contract.material import attempt, begun, commit, committed, restore, snapshot

LOST = [Fault.LOST_APPLIED, Fault.LOST_NOT_APPLIED, Fault.LOST_APPLIED_LATER]


async def lose(awaitable: object) -> None:
    with pytest.raises(StoreError) as caught:
        await awaitable  # type: ignore[misc]
    assert not caught.value.definite


async def test_refused_write_is_definite_and_can_be_made_again() -> None:
    store = MemoryStore()
    store.memory.fail_next(Fault.REFUSED)
    with pytest.raises(StoreError) as caught:
        await begun(store, "a1")
    assert caught.value.definite
    await begun(store, "a1")


@pytest.mark.parametrize("fault", LOST)
async def test_next_state_builds_on_whatever_became_of_the_last(fault: Fault) -> None:
    store = MemoryStore()
    for state in (AttemptState.ADMITTING, AttemptState.HOLDING):
        store.memory.fail_next(fault)
        await lose(store.put_attempt(attempt("a1", state)))
        store.memory.deliver()
    await store.put_attempt(attempt("a1", AttemptState.PARKING))
    assert (await store.load()).attempts == (attempt("a1", AttemptState.PARKING),)


async def test_write_that_arrives_after_its_successor_is_void() -> None:
    store = MemoryStore()
    await begun(store, "a1")
    store.memory.fail_next(Fault.LOST_APPLIED_LATER)
    await lose(store.put_attempt(attempt("a1", AttemptState.HOLDING)))
    await store.put_attempt(attempt("a1", AttemptState.ABORTING))
    store.memory.deliver()
    assert (await store.load()).attempts == (attempt("a1", AttemptState.ABORTING),)


@pytest.mark.parametrize("fault", LOST)
async def test_lost_commit_is_settled_for_good(fault: Fault) -> None:
    store = MemoryStore()
    await begun(store, "a1")
    store.memory.fail_next(fault, "/snapshots/")
    await lose(commit(store, "a1"))
    settled = await store.find_commit("llm", "a1")
    assert settled == (snapshot("a1") if fault is Fault.LOST_APPLIED else None)
    store.memory.deliver()  # what was kept back arrives after all, and must be void now
    if settled is None:
        with pytest.raises(NotFound):
            await store.snapshot("a1")
        await store.put_attempt(attempt("a1", AttemptState.ABORTED))
        assert await store.find_commit("llm", "a1") is None
    else:
        with pytest.raises(StoreError, match="was committed"):
            await store.put_attempt(attempt("a1", AttemptState.ABORTED))


async def test_commit_that_was_not_sent_is_definite_even_when_a_worker_record_was_lost() -> None:
    store = MemoryStore()
    await begun(store, "a1")
    store.memory.fail_next(Fault.LOST_NOT_APPLIED, "/workers/")
    with pytest.raises(StoreError) as caught:
        await commit(store, "a1")
    assert caught.value.definite
    await commit(store, "a1")
    assert await store.snapshot("a1") == snapshot("a1")


@pytest.mark.parametrize("fault", LOST)
async def test_lost_settling_is_asked_again(fault: Fault) -> None:
    store = MemoryStore()
    await begun(store, "a1")
    store.memory.fail_next(fault)
    await lose(store.find_commit("llm", "a1"))
    store.memory.deliver()
    assert await store.find_commit("llm", "a1") is None
    await store.put_attempt(attempt("a1", AttemptState.ABORTED))


@pytest.mark.parametrize("fault", LOST)
async def test_lost_admission_is_asked_again(fault: Fault) -> None:
    store = MemoryStore()
    await committed(store, "a1")
    store.memory.fail_next(fault, "/restores/")
    await lose(store.admit_restore(restore("r1", "a1"), 1))
    store.memory.deliver()
    await store.admit_restore(restore("r1", "a1"), 1)
    await store.put_restore(replace(restore("r1", "a1"), state=RestoreState.FETCHING))
    assert (await store.load()).jobs[0].incarnation == 2


async def test_fence_lost_in_the_store_is_lost_here_at_once() -> None:
    old = MemoryStore()
    MemoryStore(old.memory)
    with pytest.raises(Fenced, match="is gone from the store"):
        await begun(old, "a1")
    revision = old.memory.revision
    with pytest.raises(Fenced, match="ended"):
        await begun(old, "a1")
    assert old.memory.revision == revision


class History:
    """What was told to callers, held against what is there after every step."""

    def __init__(self) -> None:
        self.memory = MemoryStore().memory
        self.store = MemoryStore(self.memory)
        self.told: set[str] = set()  # commits that were answered
        self.settled: set[str] = set()  # told that they will never be, and not asked for since
        self.newest = self.incarnation = 0

    async def do(self, step: str, number: int) -> None:
        name = f"a{number}"
        match step:
            case "put":
                await begun(self.store, name)
            case "commit":
                self.settled.discard(name)
                await commit(self.store, name)
                self.told.add(name)
            case "settle":
                if await self.store.find_commit("llm", name) is None:
                    self.settled.add(name)
                else:
                    self.told.add(name)
            case "restore":
                raised = restore(f"r{number}", name, number + 2)
                await self.store.admit_restore(raised, number + 1)
            case "job":
                await self.store.put_job(JobRecord("llm", 2, 2, number))
            case "new leader":
                self.store = MemoryStore(self.memory)
                await self.store.load()
            case "deliver":
                self.memory.deliver()

    async def check(self) -> None:
        reader = Records(self.memory)
        there = {each.snapshot for each in await reader.snapshots("llm")}
        assert self.told <= there, "a commit that was answered is gone"
        assert not self.settled & there, "a commit that was settled as None came after all"
        for job in (await reader.load()).jobs:
            assert job.incarnation >= self.incarnation
            self.incarnation = job.incarnation
            if job.latest:
                assert job.latest in there
                began = self.memory._now(reader.keys.attempt("llm", job.latest))
                assert began is not None
                assert began.create_revision >= self.newest, "latest went back"
                self.newest = began.create_revision


STEP = st.tuples(
    st.sampled_from(["put", "commit", "settle", "restore", "job", "new leader", "deliver"]),
    st.integers(0, 2),
    st.sampled_from([None, None, *Fault]),
)


@settings(max_examples=200, deadline=None)
@given(steps=st.lists(STEP, max_size=25))
async def test_nothing_ever_goes_back(steps: list[tuple[str, int, Fault | None]]) -> None:
    """Whatever is lost: a commit stays, None is final, `latest` and incarnation only grow."""
    history = History()
    for step, number, fault in steps:
        if fault is not None:
            history.memory.fail_next(fault)
        with contextlib.suppress(AllstopError):  # which ones come is the other tests' subject
            await history.do(step, number)
        await history.check()
