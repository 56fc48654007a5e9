"""Checkpoints that are due by themselves, over real gRPC: set, taken, shown, handed on."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import TypeVar

import pytest

from coordinator.core.errors import BadRequest, NotFound
from coordinator.core.job_policy import JobPolicy, OnFailure, When
from coordinator.core.model import AttemptState, Phase
from coordinator.server.testing import running_coordinator
from coordinator.store.memory import MemoryStore
from tests.support.cluster import Cluster, cluster
from tests.support.fake_shim import Behaviour

SOON = JobPolicy("llm", When.SECONDS, interval_s=1.0)
PATIENCE_S = 20.0
Answer = TypeVar("Answer")


async def until(
    question: Callable[[], Awaitable[Answer]], wanted: Callable[[Answer], bool]
) -> Answer:
    """Ask until the answer is as wanted."""
    async with asyncio.timeout(PATIENCE_S):
        while True:
            if wanted(answer := await question()):
                return answer
            await asyncio.sleep(0.05)


async def snapshots(case: Cluster, count: int) -> list[str]:
    """Wait for so many snapshots of the job."""
    found = await until(
        lambda: case.client.snapshots("llm"), lambda answer: len(answer.snapshots) >= count
    )
    return [each.snapshot for each in found.snapshots]


async def test_a_job_is_saved_by_itself_and_says_why() -> None:
    async with cluster(2) as case:
        answer = await case.client.set_policy(SOON)
        assert answer.policy == replace(SOON, set_unix_s=answer.policy.set_unix_s)
        assert answer.interval_s == 1.0
        first, _ = (await snapshots(case, 2))[:2]
        shown = await case.client.show(first)
        assert shown.attempt is not None
        assert shown.attempt.state is AttemptState.COMMITTED
        assert "1 s since the last one, of 1 s" in shown.attempt.cause
        told = await case.client.policy("llm")
        assert told.checkpoint_s > 0
        assert told.attempt_s > 0


async def test_a_job_that_is_down_when_recovery_is_switched_on_is_told_of() -> None:
    recovered = JobPolicy("llm", on_failure=OnFailure.RESTORE)
    async with cluster(2) as case:
        assert (await case.client.set_policy(recovered)).note == ""
    async with cluster(2) as case:
        await case.shims[1].leave(goodbye=False)
        await until(case.client.jobs, lambda jobs: jobs[0].state == "incomplete")
        answer = await case.client.set_policy(recovered)
        assert "the job is incomplete" in answer.note
        assert "`allstop restore llm`" in answer.note
        assert (await case.client.set_policy(JobPolicy("llm"))).note == ""


async def test_it_stops_when_it_is_switched_off() -> None:
    async with cluster(2) as case:
        await case.client.set_policy(SOON)
        await snapshots(case, 1)
        await case.client.set_policy(JobPolicy("llm"))
        await until(case.client.jobs, lambda jobs: not any(job.action for job in jobs))
        before = len((await case.client.snapshots("llm")).snapshots)
        told = await case.client.policy("llm")
        assert (told.due_in_s, told.policy.when) == (-1.0, When.NEVER)
        view = case.coordinator.reign.control
        assert view.next_wakeup() is None  # nothing will ever wake it for a checkpoint
        assert len((await case.client.snapshots("llm")).snapshots) == before


async def test_one_that_fails_is_undone_and_tried_again_later() -> None:
    async with cluster(2, behaviours={1: Behaviour(fail={Phase.DUMP: "no room"})}) as case:
        await case.client.set_policy(SOON)
        told = await until(
            lambda: case.client.policy("llm"), lambda answer: answer.waits.startswith("a while")
        )
        assert told.due_in_s > 20.0
        assert "1 failed or were refused" in told.waits


async def test_a_policy_set_before_the_job_is_there_counts_when_it_comes() -> None:
    store = MemoryStore()
    async with running_coordinator(store=store) as before:
        await before.store.put_policy(SOON)
    async with cluster(2, store=store, epoch=store.fence.epoch) as case:
        assert await snapshots(case, 1)


async def test_what_makes_no_sense_and_who_is_not_there() -> None:
    async with cluster(1) as case:
        with pytest.raises(BadRequest, match="makes no sense"):
            await case.client.set_policy(replace(SOON, interval_s=0.0))
        with pytest.raises(BadRequest):
            await case.client.set_policy(replace(SOON, job="a/b"))
        with pytest.raises(NotFound, match="no job nobody"):
            await case.client.policy("nobody")
        answer = await case.client.set_policy(replace(SOON, job="later"))
        assert "does not run" in answer.waits
        assert (await case.client.policy("later")).policy.when is When.SECONDS
