"""Shims whose workers have failed: they leave, and that hides no crash, or they are kept."""

from __future__ import annotations

import time

import pytest

from coordinator.core.job_policy import JobPolicy, OnFailure, RecoveryState
from tests.integration.badluck.conftest import Start
from tests.integration.badluck.kit import JOB, NODES, Pair, until

pytestmark = [
    pytest.mark.root,
    pytest.mark.criu,
    pytest.mark.etcd,
    pytest.mark.slow,
    pytest.mark.timeout(240),
]

BACK = JobPolicy(JOB, on_failure=OnFailure.RESTORE, tries=1, grace_s=1.0, wait_s=60.0)
LINGER_S = 2.0


async def tells(pair: Pair, *words: str) -> bool:
    lines = (await pair.client.story(JOB)).lines
    return any(all(word in line.text for word in words) for line in lines)


async def watched(pair: Pair) -> None:
    await pair.client.set_policy(BACK)
    await until("that it is watched", lambda: tells(pair, "the job runs and is watched"))


async def test_a_job_that_crashes_before_its_first_snapshot_is_not_called_finished(
    start_pair: Start,
) -> None:
    pair = await start_pair()
    await watched(pair)
    for rank in (0, 2):  # one of each node
        pair.tell(rank, "exit", "7")

    async def left() -> bool:
        return all(pair.deployment.shims[node].poll() is not None for node in NODES)

    await until("that both shims have left", left)
    assert all(pair.deployment.shims[node].returncode for node in NODES)
    await until("the end of it", lambda: tells(pair, "given up", "no snapshot left"))
    story = await pair.client.story(JOB)
    assert story.recovery.state is RecoveryState.GIVEN_UP
    assert story.recovery.crashes == 1
    assert not await tells(pair, "told to end")


async def test_a_node_that_comes_late_finds_the_shims_of_the_job_there(start_pair: Start) -> None:
    pair = await start_pair("n2", options=("--linger", f"{LINGER_S:g}s"))
    await watched(pair)
    await pair.snapshot()
    rank = await pair.pid_of(0)
    pair.host("n1").power_off()
    pair.host("n0").run(["kill", "-9", str(rank)])
    await until("that it waits", lambda: tells(pair, "waits for nodes"))
    since = time.monotonic()

    async def longer() -> bool:
        return time.monotonic() - since > 3 * LINGER_S

    await until("a time longer than --linger", longer)
    assert pair.deployment.shims["n0"].poll() is None
    pair.start_spare("n2")
    await until("its way back", lambda: tells(pair, "the job runs from"))
    await pair.moves()
    job = await pair.job()
    assert job is not None
    assert job.nodes == ("n0", "n2")
