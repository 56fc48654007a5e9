"""A coordinator whose wall clock is set by a day: which snapshot is the newest, what is due."""

from __future__ import annotations

import time
from dataclasses import replace

import pytest

from coordinator.core.job_policy import JobPolicy, OnFailure, When
from coordinator.store.memory import MemoryKeyValue, MemoryStore
from tests.integration.control.test_policy import snapshots
from tests.integration.control.test_recovery import POLICY, told
from tests.support.cluster import Cluster, cluster, follow

DAY_S = 86_400.0
JUMPS = pytest.mark.parametrize("jump_s", [-DAY_S, DAY_S])


class Clock:
    """A wall clock that is set."""

    ahead_s = 0.0

    def __call__(self) -> float:
        return time.time() + self.ahead_s


async def saved(case: Cluster) -> str:
    went = await follow(case.client.checkpoint("llm"))
    assert went.error is None
    return went.events[0].action


@JUMPS
async def test_what_was_committed_last_is_the_newest_whatever_its_date(jump_s: float) -> None:
    clock, kv = Clock(), MemoryKeyValue()
    async with cluster(2, store=MemoryStore(kv), unix=clock) as case:
        await saved(case)
        clock.ahead_s = jump_s
        newest = await saved(case)
        (job,) = await case.client.jobs()
        assert job.job.latest == newest
        restored = await follow(case.client.restore("llm"))
        assert restored.last.restore is not None
        assert restored.last.restore.snapshot == newest
    async with cluster(2, store=MemoryStore(kv)) as case:  # a new leader whose clock is right
        (job,) = await case.client.jobs()
        assert job.job.latest == newest
        clock.ahead_s = 0.0
        assert (await snapshots(case, 2))[-1] == newest


@JUMPS
async def test_a_recovery_goes_on_from_the_newest_and_its_story_stays_in_order(
    jump_s: float,
) -> None:
    clock = Clock()
    async with cluster(2, unix=clock) as case:
        await case.client.set_policy(POLICY)
        await told(case, "is watched")
        await saved(case)
        clock.ahead_s = jump_s
        newest = await saved(case)
        await case.shims[1].exit_worker("llm", 1, -9)
        story = await told(case, "was ended by signal 9", f"runs from {newest}")
        own = [line.text for line in story.recovery.story]
        assert [text for text in (line.text for line in story.lines) if text in own] == own


@JUMPS
async def test_checkpoints_are_due_by_a_clock_that_nobody_sets(jump_s: float) -> None:
    clock = Clock()
    async with cluster(2, unix=clock) as case:
        soon = JobPolicy("llm", When.SECONDS, interval_s=1.0, on_failure=OnFailure.RESTORE)
        await case.client.set_policy(soon)
        before = len(await snapshots(case, 1))
        clock.ahead_s = jump_s
        began = time.monotonic()
        after = len(await snapshots(case, before + 2))
        assert time.monotonic() - began > 0.5
        assert after == before + 2
        await case.client.set_policy(replace(soon, when=When.NEVER))
