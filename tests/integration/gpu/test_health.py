"""Sick GPUs below real shims: the real pynvml over a fake library, fake devices, and real CRIU.

One story, since a deployment is dear: a GPU is failing, so its node is drained by itself and the
job comes back on another one; then another has an uncorrected error, and what is saved is suspect.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
import pytest_asyncio

from coordinator.core.drain_records import DrainState
from coordinator.core.job_policy import JobPolicy, OnFailure
from coordinator.core.view import NodeView
from lab import Lab
from tests.fakes.nvml.build import described
from tests.integration.badluck.kit import JOB, NODES, Action, until
from tests.integration.gpu.conftest import POLICY
from tests.integration.gpu.kit import GpuPair, uuids_of
from tests.support.nvml import library

pytestmark = [
    pytest.mark.root,
    pytest.mark.criu,
    pytest.mark.etcd,
    pytest.mark.cc,
    pytest.mark.slow,
    pytest.mark.timeout(180),
]

SPARE = "n2"


@dataclass
class Watched(GpuPair):
    """GPU ranks whose shims watch the health of their GPUs."""

    def _beside(self, node: str) -> None:
        super()._beside(node)
        told = self.shared / f"nvml.{node}"
        told.write_text(described(uuids_of(node), "events"))
        path = f"{self.env['LD_LIBRARY_PATH']}:{library()}"
        self.env = {**self.env, "LD_LIBRARY_PATH": path, "FAKE_NVML": str(told)}

    def happens(self, node: str, xid: int) -> None:
        """The driver of a node tells an Xid of its first GPU."""
        with (self.shared / f"nvml.{node}.events").open("a") as events:
            events.write(f"0 8 {xid}\n")

    async def view(self, node: str) -> NodeView:
        """The node as `allstop nodes` shows it."""
        return next(v for v in await self.client.nodes() if v.facts.node == node)


@pytest_asyncio.fixture
async def watched(
    make_lab: Callable[..., Lab], criu_path: str, tmp_path: Path
) -> AsyncIterator[Watched]:
    """The job on n0 and n1, and a spare like them."""
    made = Watched(make_lab([*NODES, SPARE]), tmp_path / "shared", criu_path, policy=POLICY)
    try:
        await made.start(spares=(SPARE,))
        yield made
    finally:
        await made.stop()


async def test_a_failing_gpu_and_then_one_with_an_uncorrected_error(watched: Watched) -> None:
    await watched.client.set_policy(JobPolicy(JOB, on_failure=OnFailure.RESTORE))
    watched.happens("n1", 64)

    async def drained() -> NodeView | None:
        view = await watched.view("n1")
        return view if view.drain and view.drain.state is not DrainState.DRAINING else None

    view = await until("the drain of n1", drained)
    assert (view.drain.state, view.drain.reason) == (DrainState.DRAINED, "nothing runs on it")
    assert f"GPU 0 ({uuids_of('n1')[0]}): Xid 64" in view.drain.why
    assert view.facts.gpus[0].sick
    assert not view.facts.gpus[1].sick
    assert any("[drain]" in line for line in view.health)
    await watched.chains_are_right()
    assert watched.states(SPARE) == ["running", "running"]
    story = " ".join(line.text for line in (await watched.client.story(JOB)).lines)
    assert "n1: GPU 0" in story
    (good,) = (await watched.client.snapshots(JOB)).snapshots
    assert (good.suspect, view.drain.jobs[0].snapshot) == ("", good.snapshot)

    await watched.client.set_policy(JobPolicy(JOB, on_failure=OnFailure.LEAVE))
    watched.happens("n0", 48)

    async def told() -> bool:
        return any("Xid 48" in line for line in (await watched.view("n0")).health)

    await until("the error of n0", told)
    bad = await watched.snapshot()
    assert bad.suspect.startswith(f"n0: GPU 0 ({uuids_of('n0')[0]}): Xid 48")
    (trouble,) = bad.workers[0].troubles
    assert (trouble.code, trouble.source, bad.workers[1].troubles) == (48, "nvml", ())
    planned = await watched.client.plan(JOB)
    assert planned.plan is None, "n0 has a sick GPU, and n1 is drained"
    reasons = {(each.node, each.worker): " ".join(each.reasons) for each in planned.refused}
    assert f"GPU 0 ({uuids_of('n0')[0]}) is sick: Xid 48" in reasons["n0", 0]
    assert "it is drained" in reasons["n1", 0]
    await watched.chains_are_right()
    ended = await Action(watched.client.checkpoint(JOB)).ended()
    assert ended.snapshot is not None
    assert ended.snapshot.suspect, "until the GPU is reset"
