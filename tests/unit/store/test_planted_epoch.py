"""No epoch compare at commit: what the store does without it is found, so it is what protects."""

import contextlib
from collections.abc import Awaitable, Callable, Sequence

import pytest

from coordinator.core.errors import Fenced, StoreError
from coordinator.core.model import AttemptState
from coordinator.store.kv import Compare, Delete, Put, Written
from coordinator.store.memory import Fault, MemoryKeyValue
from tests.contract.material import JOB, Bench, attempt, begun, snapshot


class WithoutEpoch(MemoryKeyValue):
    """As a coordinator that does not compare its leader's key."""

    async def write(self, compares: Sequence[Compare], ops: Sequence[Put | Delete]) -> Written:
        return await super().write([c for c in compares if "/leader/" not in c.key], ops)


async def a_commit_that_arrives_under_the_next_leader(bench: Bench, kv: MemoryKeyValue) -> None:
    """The old leader's commit is on its way while it loses its key; etcd applies it late."""
    old = await bench.store()
    await old.put_job(JOB)
    await begun(old, "a1")
    kv.fail_next(Fault.LOST_APPLIED_LATER, "/snapshots/a1")
    with pytest.raises(StoreError):
        await old.commit(snapshot("a1"), attempt("a1", AttemptState.COMMITTED))
    await bench.rights[0].resign()
    new = await bench.store()
    loaded = await new.load()
    assert [each.attempt for each in loaded.attempts] == ["a1"], "so the new leader undoes it"
    kv.deliver()
    assert await new.find_commit("llm", "a1") is None, "1, 5: committed behind the leader's back"
    assert await new.snapshots("llm") == ()


async def a_leader_that_does_not_know_that_it_was_deposed(bench: Bench, kv: MemoryKeyValue) -> None:
    """It stood still for longer than its lease; its own clock does not tell it."""
    old = await bench.store()
    await old.put_job(JOB)
    await begun(old, "a1")
    await kv.revoke(old.fence.lease)
    new = await bench.store()
    await new.load()
    with contextlib.suppress(Fenced):
        await old.commit(snapshot("a1"), attempt("a1", AttemptState.COMMITTED))
    assert await new.snapshots("llm") == (), "3, 5: a deposed leader has committed"


STORIES = (
    a_commit_that_arrives_under_the_next_leader,
    a_leader_that_does_not_know_that_it_was_deposed,
)


Story = Callable[[Bench, MemoryKeyValue], Awaitable[None]]


async def played(story: Story, kv: MemoryKeyValue) -> None:
    bench = Bench(kv, "/planted")
    try:
        await story(bench, kv)
    finally:
        for right in bench.rights:
            await right.resign()
        await kv.close()


@pytest.mark.parametrize("story", STORIES, ids=lambda story: story.__name__)
async def test_an_old_leader_commits_nothing(story: Story) -> None:
    await played(story, MemoryKeyValue())


@pytest.mark.parametrize("story", STORIES, ids=lambda story: story.__name__)
async def test_without_the_compare_that_is_found(story: Story) -> None:
    with pytest.raises(AssertionError, match="5: "):
        await played(story, WithoutEpoch())
