"""A job that comes back by itself, over real gRPC: lost nodes, crashes, waiting, and its story."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import TypeVar

from allstop.v1 import shim_pb2

from coordinator.api.values import Story
from coordinator.core.job_policy import JobPolicy, OnFailure, RecoveryState
from coordinator.core.model import Phase, RestoreState
from tests.support.cluster import Cluster, cluster, follow
from tests.support.fake_shim import Behaviour, FakeShim, attached

POLICY = JobPolicy("llm", on_failure=OnFailure.RESTORE, grace_s=1.0, wait_s=30.0)
PATIENCE_S = 30.0
Answer = TypeVar("Answer")


async def until(ask: Callable[[], Awaitable[Answer]], wanted: Callable[[Answer], bool]) -> Answer:
    """Ask until the answer is as wanted."""
    async with asyncio.timeout(PATIENCE_S):
        while True:
            if wanted(answer := await ask()):
                return answer
            await asyncio.sleep(0.05)


async def told(case: Cluster, *words: str) -> Story:
    """Wait until the story has all these words."""

    def has(story: Story) -> bool:
        text = " ".join(line.text for line in story.lines)
        return all(word in text for word in words)

    return await until(lambda: case.client.story("llm"), has)


async def saved(case: Cluster) -> None:
    await case.client.set_policy(POLICY)
    await told(case, "is watched")
    assert (await follow(case.client.checkpoint("llm"))).error is None


def places(shims: list[FakeShim]) -> dict[str, list[int]]:
    return {shim.node: [worker for _, worker in shim.workers] for shim in shims}


async def test_a_lost_node_is_replaced_and_the_story_says_so() -> None:
    async with cluster(2, spares=1) as case:
        await saved(case)
        case.shims[1].vanish()
        story = await told(case, "the run has ended at step", "runs from")
        assert story.recovery.state is RecoveryState.WATCHING
        (job,) = await case.client.jobs()
        assert (job.state, job.nodes) == ("running", ("node-0", "node-2"))
        shown = await case.client.show(job.job.latest)
        assert shown.snapshot is not None
        stored = await case.coordinator.store.load()
        (kept,) = stored.recoveries
        assert kept == story.recovery
        texts = [line.text for line in story.lines]
        assert texts == sorted(texts, key=lambda text: story.lines[texts.index(text)].unix_s)
        restores = [text for text in texts if text.startswith("restore ")]
        assert len(restores) == 1
        assert "node-1 is lost" in restores[0]


async def test_a_shim_that_is_told_to_end_has_not_failed() -> None:
    async with cluster(2, spares=1) as case:
        await saved(case)
        why = "the shim was told SIGTERM"
        shim = case.shims[1]
        await shim.say(notice=shim_pb2.NoticeGiven(kind=shim_pb2.NOTICE_KIND_END, why=why))
        await shim.exit_worker("llm", 1, -15)
        await shim.leave()
        story = await told(case, "the run was ended on purpose", "runs from")
        assert story.recovery.state is RecoveryState.WATCHING
        assert not any("the run has ended" in line.text for line in story.lines)
        (job,) = await case.client.jobs()
        assert (job.state, job.nodes) == ("running", ("node-0", "node-2"))
        history = (await case.client.policy("llm")).history
        assert (history.failures, [node.failures for node in history.nodes if node.failures]) == (
            0,
            [],
        )


async def test_a_spare_that_comes_later_is_taken_the_moment_it_is_there() -> None:
    async with cluster(2) as case:
        await saved(case)
        case.shims[1].vanish()
        story = await told(case, "waits for nodes")
        assert story.recovery.state is RecoveryState.WAITING
        async with attached(case.address, 0, spares=1, first=7) as (spare,):
            story = await told(case, "runs from")
            assert story.recovery.state is RecoveryState.WATCHING
            assert [worker for _, worker in spare.workers] == [1]


async def test_a_crash_is_recovered_from_where_it_happened() -> None:
    async with cluster(2) as case:
        await saved(case)
        await case.shims[1].exit_worker("llm", 1, 3)
        story = await told(case, "ended with exit code 3", "runs from")
        assert story.recovery.state is RecoveryState.WATCHING
        assert places(case.shims) == {"node-0": [0], "node-1": [1]}
        answer = await case.client.policy("llm")
        assert answer.history.failures == 1


async def test_without_a_snapshot_it_is_given_up_and_what_is_left_is_ended() -> None:
    async with cluster(2) as case:
        await case.client.set_policy(replace(POLICY, wait_s=1.0))
        await told(case, "is watched")
        await case.shims[1].exit_worker("llm", 1, 1)
        story = await told(case, "given up, there is no snapshot left")
        assert story.recovery.state is RecoveryState.GIVEN_UP
        await until(case.client.jobs, lambda jobs: not case.shims[0].workers)
        assert not any(
            record.state is RestoreState.RUNNING
            for record in case.coordinator.reign.control.restores()
        )


async def test_a_spare_that_dies_while_it_fetches() -> None:
    async with cluster(2, spares=2, behaviours={2: Behaviour(vanish={Phase.FETCH})}) as case:
        await saved(case)
        case.shims[1].vanish()
        story = await told(case, "failed, and not of its snapshot", "node-2 was lost", "runs from")
        assert story.recovery.state is RecoveryState.WATCHING
        assert story.recovery.tries == 0
        (job,) = await case.client.jobs()
        assert (job.state, job.nodes) == ("running", ("node-0", "node-3"))
        assert Phase.FETCH in case.shims[2].phases()


async def test_two_nodes_lost_within_a_second_are_one_recovery() -> None:
    async with cluster(3, spares=2) as case:
        await saved(case)
        case.shims[0].vanish()
        await asyncio.sleep(0.3)
        case.shims[2].vanish()
        story = await told(case, "node-0 is lost", "node-2 is lost", "runs from")
        assert sum("the run has ended" in line.text for line in story.lines) == 1
        (job,) = await case.client.jobs()
        assert job.state == "running"
        assert set(job.nodes) == {"node-1", "node-3", "node-4"}
        assert len(case.coordinator.reign.control.restores()) == 1


async def test_a_node_that_is_lost_during_an_attempt() -> None:
    async with cluster(2, spares=1) as case:
        await saved(case)
        case.shims[1].behaviour.vanish.add(Phase.DUMP)
        went = await follow(case.client.checkpoint("llm"))
        assert went.error is not None
        story = await told(case, "ABORTED", "node-1 is lost", "runs from")
        assert story.recovery.snapshot == (await case.client.snapshots("llm")).snapshots[0].snapshot
        (job,) = await case.client.jobs()
        assert (job.state, job.nodes) == ("running", ("node-0", "node-2"))


async def test_a_node_that_returns_with_its_old_worker_is_fenced() -> None:
    async with cluster(2, spares=1) as case:
        await saved(case)
        case.shims[1].vanish()
        await told(case, "runs from")
        assert case.shims[1].workers
        await case.shims[1].attach()
        await told(case, "node-1 is fenced: worker 1")
        await case.shims[1].until(lambda: not case.shims[1].workers)
        (job,) = await case.client.jobs()
        assert job.nodes == ("node-0", "node-2")


async def test_a_job_whose_workers_all_end_with_0_is_finished() -> None:
    async with cluster(2) as case:
        await saved(case)
        for worker in (0, 1):
            await case.shims[worker].exit_worker("llm", worker, 0)
        story = await told(case, "all workers ended with exit code 0")
        assert story.recovery.state is RecoveryState.FINISHED
        assert not case.coordinator.reign.control.restores()
