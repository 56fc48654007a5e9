"""A job name used again: after its end, while it runs, after a lost node; and a restore that fails.

The shims are real ones in a lab; the workers are two small programs that talk over TCP.
"""

from __future__ import annotations

import asyncio
import subprocess
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from coordinator.core.errors import AllstopError, Fenced
from lab import Lab
from tests.integration.runs.kit import JOB, Talk, follow

pytestmark = [pytest.mark.root, pytest.mark.criu, pytest.mark.etcd, pytest.mark.slow]


@pytest_asyncio.fixture
async def talk(make_lab: Callable[..., Lab], criu_path: str, tmp_path: Path) -> AsyncIterator[Talk]:
    """The job runs on n0 and n1; n2 has no shim."""
    made = Talk(make_lab(["n0", "n1", "n2"]), tmp_path / "shared", criu_path)
    made.start(("n0", "n1"))
    await made.is_running(1)
    await made.goes_on()
    yield made
    await made.client.close()


async def exit_code(talk: Talk, process: subprocess.Popen[Any]) -> int:
    """What a shim ended with, once it has."""
    try:
        return int(await asyncio.to_thread(process.wait, 60))
    except subprocess.TimeoutExpired:
        rounds = [talk.said("round", worker) for worker in (0, 1)]
        logs = [talk.deployment.log(name).read_text()[-3000:] for name in ("n0", "n1", "control")]
        pytest.fail("\n---\n".join([f"it does not end, rounds {rounds}", *logs]))


@pytest.mark.timeout(240)
async def test_a_second_run_of_a_worker_that_runs_is_refused(talk: Talk) -> None:
    assert await exit_code(talk, talk.run(1, "n2", ("n0", "n1"))) == Fenced.exit_code
    said = talk.deployment.log("n2").read_text()
    assert f"worker 1 of job {JOB} already runs on n1" in said
    await talk.goes_on()
    view = await talk.is_running(1)
    assert view.nodes == ("n0", "n1")


@pytest.mark.timeout(300)
async def test_the_next_run_is_a_new_incarnation_and_snapshots_of_the_first_stay(
    talk: Talk,
) -> None:
    first = await talk.snapshot()
    shims = dict(talk.deployment.shims)
    talk.end()
    assert [await exit_code(talk, shims[name]) for name in ("n0", "n1")] == [0, 0]

    talk.start(("n0", "n1"))
    await talk.is_running(2)
    await talk.goes_on()
    assert (await talk.snapshot()).incarnation == 2

    # Another coordinator takes over: who lives stays the job.
    talk.deployment.stop_control_plane()
    talk.deployment.start_control_plane()
    await talk.is_running(2)
    view = await talk.job()
    assert view is not None
    assert view.latest_unix_s > first.committed_unix_s

    restored = await follow(talk.client.restore(JOB, first.snapshot))
    assert restored.state == "RUNNING", restored.reason
    await talk.is_running(3)
    await talk.goes_on()


@pytest.mark.timeout(300)
async def test_a_lost_node_that_returns_finds_another_run_and_ends(talk: Talk) -> None:
    old, host = talk.deployment.shims["n1"], talk.lab.hosts["n1"]
    pid = (await talk.is_running(1)).workers[1].root_pid
    # The other end is gone when it returns: stopped, it cannot die of that before it is fenced.
    host.run(["sh", "-c", f"kill -STOP {pid}"])
    host.cut_off()
    await talk.is_lost("n1")
    talk.deployment.shims["n0"].terminate()
    await exit_code(talk, talk.deployment.shims["n0"])

    talk.start(("n0", "n2"))
    await talk.is_running(2)
    await talk.goes_on()
    host.reconnect()
    assert await exit_code(talk, old) == Fenced.exit_code
    assert "incarnation 2" in talk.deployment.log("n1").read_text()
    view = await talk.is_running(2)
    assert view.nodes == ("n0", "n2")
    await talk.goes_on()


@pytest.mark.timeout(240)
async def test_a_restore_that_fails_early_leaves_the_job_as_it_was(talk: Talk) -> None:
    taken = await talk.snapshot()
    place = talk.deployment.store / taken.workers[1].manifest
    aside = place.with_name("aside")
    place.rename(aside)
    with pytest.raises(AllstopError) as failed:
        await follow(talk.client.restore(JOB, taken.snapshot))
    assert failed.value.where.phase == "FETCH"
    await talk.goes_on()
    await talk.is_running(2)  # the restore had raised it
    assert (await talk.snapshot()).incarnation == 2

    aside.rename(place)
    restored = await follow(talk.client.restore(JOB, taken.snapshot))
    assert restored.state == "RUNNING", restored.reason
    await talk.goes_on()
    await talk.is_running(3)
