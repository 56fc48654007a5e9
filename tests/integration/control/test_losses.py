"""Nodes that vanish in each phase, freeze, or come back."""

import asyncio
import contextlib
import os
import signal
import sys

import pytest

from coordinator.core.model import AttemptState, Phase
from coordinator.link.options import Keepalive
from coordinator.server.testing import RunningCoordinator, running_coordinator
from tests.support.cluster import cluster, follow
from tests.support.fake_shim import Behaviour, FakeShim

PHASES = [Phase.HOLD, Phase.PARK, Phase.DUMP, Phase.PERSIST]


@pytest.mark.parametrize("phase", PHASES)
async def test_a_node_lost_in_a_phase_is_named_and_the_others_are_undone(phase: Phase) -> None:
    async with cluster(3, behaviours={1: Behaviour(vanish={phase})}) as case:
        went = await follow(case.client.checkpoint("llm"))
        assert went.error is not None
        assert "node-1" in str(went.error)
        attempt = went.last.attempt
        assert attempt is not None
        assert attempt.state is AttemptState.ABORTED
        assert attempt.failure is not None
        assert attempt.failure.node == "node-1"
        for shim in (case.shims[0], case.shims[2]):
            await shim.until(lambda shim=shim: Phase.UNDO in shim.phases())  # type: ignore[misc]
        assert (await case.client.snapshots("llm")).snapshots == ()
        states = {view.facts.node: view.state for view in await case.client.nodes()}
        assert states == {"node-0": "attached", "node-1": "lost", "node-2": "attached"}
        stored = (await case.client.show(attempt.attempt)).attempt
        assert stored is not None
        assert stored.state is AttemptState.ABORTED


async def test_the_same_shim_dials_again_and_the_job_can_be_saved() -> None:
    async with cluster(2, behaviours={1: Behaviour(vanish={Phase.PARK})}) as case:
        assert (await follow(case.client.checkpoint("llm"))).error is not None
        case.shims[1].behaviour.vanish.clear()
        await case.shims[1].attach()
        assert (await follow(case.client.checkpoint("llm"))).error is None


async def test_a_worker_that_exits_during_an_attempt_ends_it() -> None:
    async with cluster(2, behaviours={1: Behaviour(mute={Phase.PARK})}) as case:
        asking = case.client.checkpoint("llm")
        await anext(asking)
        shim = case.shims[1]
        await shim.until(lambda: Phase.PARK in shim.phases())
        await shim.exit_worker("llm", 1, -9, "Killed")
        went = await follow(asking)
        assert went.error is not None
        assert "worker 1" in str(went.error)


async def test_a_shim_that_leaves_is_not_lost() -> None:
    async with cluster(1, spares=1) as case:
        await case.shims[1].leave()
        views = {view.facts.node: view for view in await case.client.nodes()}
        assert views["node-1"].state == "left"
        assert "the test is over" in views["node-1"].reason


async def state_within(coordinator: RunningCoordinator, state: str, timeout_s: float) -> str:
    """The state of the only node, once it is `state` or the time is over."""
    for _ in range(round(timeout_s / 0.05)):
        (view,) = coordinator.reign.control.nodes()
        if view.state == state:
            break
        await asyncio.sleep(0.05)
    return view.state


async def test_two_shims_of_one_name_do_not_confuse_it() -> None:
    async with cluster(1) as case:
        second = FakeShim(case.address, "node-0", job="llm", worker=0, workers=1)
        await second.attach()
        await case.shims[0].until(lambda: case.shims[0].ended is not None)
        assert "another stream" in str(case.shims[0].ended)
        assert (await follow(case.client.checkpoint("llm"))).error is None
        assert Phase.DUMP in second.phases()
        assert not case.shims[0].orders
        await second.leave()


@pytest.mark.parametrize("number", [signal.SIGSTOP, signal.SIGKILL])
async def test_a_frozen_or_killed_shim_process_is_noticed(number: signal.Signals) -> None:
    async with running_coordinator(keepalive=Keepalive(1_000, 1_500)) as coordinator:
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "tests.support.fake_shim",
            coordinator.address,
            "node-7",
            env={**os.environ, "PYTHONPATH": ".:proto"},
            stdout=asyncio.subprocess.PIPE,
        )
        try:
            assert process.stdout is not None
            async with asyncio.timeout(20):
                assert await process.stdout.readline() == b"attached\n"
            process.send_signal(number)
            assert await state_within(coordinator, "lost", timeout_s=8.0) == "lost"
        finally:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await process.wait()
