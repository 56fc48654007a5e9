"""Communicators are destroyed and met anew: after a checkpoint, on another node, after an undo.

Real shims, coordinator, CRIU and TCP; NCCL's checkpoint shim is a stand-in that meets as it does.
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest
import pytest_asyncio

from coordinator.core.errors import AllstopError
from lab import Lab
from tests.integration.nccl.kit import JOB, Sums, until
from tests.integration.runs.kit import follow

pytestmark = [
    pytest.mark.root, pytest.mark.criu, pytest.mark.etcd, pytest.mark.cc, pytest.mark.slow,
]  # fmt: skip


@pytest_asyncio.fixture
async def sums(
    make_lab: Callable[..., Lab], criu_path: str, nccl_shim: Path, tmp_path: Path
) -> AsyncIterator[Sums]:
    lab = make_lab(["n0", "n1", "n2"])
    policy = ("resume_s=4s", "release_s=4s", "dump_s=6s", "margin_s=1s", "adopt_s=8s")
    made = Sums(lab, tmp_path / "shared", criu_path, nccl_shim, *policy)
    made.start()
    await made.is_running(1)
    await made.goes_on()
    yield made
    await made.client.close()


@pytest.mark.timeout(240)
async def test_they_are_rebuilt_in_place_and_on_another_node(sums: Sums) -> None:
    taken = (await follow(sums.client.checkpoint(JOB))).snapshot
    assert taken is not None
    assert [worker.nccl for worker in taken.workers] == ["rebuild", "rebuild"]
    assert not [end for worker in taken.workers for end in worker.connections], "all were closed"
    await sums.goes_on()

    sums.lab.hosts["n0"].power_off()  # rank 0 is there, which the others look for
    await sums.is_lost("n0")
    restored = await follow(sums.client.restore(JOB, taken.snapshot))
    assert restored.state == "RUNNING", restored.reason
    await sums.is_running(2)
    await sums.goes_on()
    again = (await follow(sums.client.checkpoint(JOB))).snapshot
    assert again is not None
    assert again.step > taken.step
    await sums.goes_on()


@pytest.mark.timeout(240)
async def test_a_rank_that_never_comes_is_named(sums: Sums) -> None:
    away = sums.tell("absent", 3)
    told = await follow(sums.client.checkpoint(JOB))
    assert told.state == "COMMITTED"
    assert "rank 3 (pid" in told.reason
    assert "did not come to rebuild the NCCL communicators" in told.reason
    assert "for rank 3 of other workers" in told.reason, "those who wait say for whom"
    lacking = "is rebuilding its communicators"
    await until("findings", lambda: _any(sums, "rank 3", lacking))
    with pytest.raises(AllstopError, match=lacking):
        await follow(sums.client.checkpoint(JOB))

    away.unlink()
    await sums.goes_on()
    await until("their end", lambda: _none(sums, lacking))

    sums.tell("absent", 3)
    with pytest.raises(AllstopError) as failed:
        await follow(sums.client.restore(JOB, told.snapshot.snapshot))
    assert failed.value.where.rank == 3
    assert failed.value.where.phase == "RELEASE"
    assert "did not come to rebuild the NCCL communicators" in failed.value.what


@pytest.mark.timeout(240)
async def test_a_rank_that_cannot_is_named(sums: Sums) -> None:
    sums.tell("fails", 2)
    told = await follow(sums.client.checkpoint(JOB))
    assert "rank 2 (pid" in told.reason
    assert "ncclCheckpointRestore gave 3" in told.reason


@pytest.mark.timeout(240)
async def test_they_are_rebuilt_though_nobody_leads_when_the_timer_runs_out(sums: Sums) -> None:
    waits = sums.tell("prepare", 1)
    asking = asyncio.ensure_future(follow(sums.client.checkpoint(JOB)))
    await until("the order to dump", lambda: "PARK done" in sums.log("n0"))
    plane = sums.deployment.plane
    assert plane is not None
    plane.send_signal(signal.SIGKILL)
    plane.wait(10)
    waits.unlink()
    await until("the timers", lambda: all("timer ran out" in sums.log(n) for n in ("n0", "n1")))
    before = sums.steps()
    sums.deployment.start_control_plane(*sums.policy)
    with pytest.raises(AllstopError):
        await asking
    await sums.goes_on()
    assert max(before) < min(sums.steps())
    await sums.is_running(1)
    await until("the end of the findings", lambda: _none(sums, "is rebuilding"))
    assert (await follow(sums.client.checkpoint(JOB))).snapshot is not None


@pytest.mark.timeout(240)
async def test_a_teardown_that_outlasts_its_order_costs_the_attempt_and_not_the_job(
    sums: Sums,
) -> None:
    waits = sums.tell("prepare", 3)
    with pytest.raises(AllstopError, match="did not destroy the NCCL communicators") as failed:
        await follow(sums.client.checkpoint(JOB))
    assert failed.value.where.phase == "DUMP"
    unfinished = "has not finished destroying its communicators"
    await until("the finding", lambda: _any(sums, "rank 3", unfinished))
    with pytest.raises(AllstopError, match=unfinished):
        await follow(sums.client.checkpoint(JOB))

    waits.unlink()
    await sums.goes_on()
    await until("their end", lambda: _none(sums, "communicators after"))
    assert (await follow(sums.client.checkpoint(JOB))).snapshot is not None
    await sums.goes_on()


async def _any(sums: Sums, *words: str) -> bool:
    return any(all(word in text for word in words) for text in await sums.findings())


async def _none(sums: Sums, *words: str) -> bool:
    return not await _any(sums, *words)
