"""Connections over a restore: the job's own live on, those that lead out of it come back closed."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from lab import Lab
from tests.integration.runs.kit import JOB, OUTSIDE_PORT, Talk, follow, until

pytestmark = [pytest.mark.root, pytest.mark.criu, pytest.mark.etcd, pytest.mark.slow]


@pytest.mark.timeout(240)
async def test_what_leaves_the_job_comes_back_closed(
    make_lab: Callable[..., Lab], criu_path: str, tmp_path: Path
) -> None:
    talk = Talk(make_lab(["n0", "n1", "n2"]), tmp_path / "shared", criu_path)
    talk.start(("n0", "n1"))
    talk.deployment.start_spare(talk.lab.hosts["n2"])
    await talk.is_running(1)
    await talk.goes_on()

    taken = await talk.snapshot()
    outside = f"{talk.lab.control.address}:{OUTSIDE_PORT}"
    told = (await follow(talk.client.watch(taken.snapshot))).reason
    assert told.count(outside) == 2, told  # each worker has one
    assert told.count("outside the job, comes back closed") == 2, told
    for record in taken.workers:
        remote = {end.remote_address for end in record.connections}
        assert record.address not in remote, "what has both ends in the worker is no connection"
        assert talk.lab.control.address in remote
    planned = await talk.client.plan(JOB)
    assert planned.plan is not None
    assert len([note for note in planned.plan.notes if outside in note]) == 2
    await talk.goes_on()
    assert talk.said("outside", 0) == talk.said("outside", 1) == ""

    talk.lab.hosts["n1"].power_off()
    await talk.is_lost("n1")
    last = await follow(talk.client.restore(JOB))
    assert last.state == "RUNNING", last.reason
    await talk.goes_on()
    for worker in (0, 1):
        told = await until("how the outside ended", lambda w=worker: talk.said("outside", w))
        assert told in ("BrokenPipeError", "it closed", "ConnectionResetError"), told
    # What the peer had sent before it closed, and nobody had read, is not lost.
    talk.end()
    assert await until("the goodbye", lambda: talk.said("goodbye", 1)) == "this is all"
    await talk.client.close()
