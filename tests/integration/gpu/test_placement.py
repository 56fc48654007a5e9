"""Where GPU ranks go: real shims with the real pynvml over a fake library, and a fake device below.

One story, since a deployment is dear: the driver is renewed and nothing fits, so the job is started
from scratch; then a node is lost, and the job comes back on other GPUs by a map of them.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
import pytest_asyncio

from coordinator.core.errors import NoPlan
from coordinator.core.model import RestoreState
from lab import Lab
from tests.fakes.nvml.build import DRIVER, described
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

SPARES = ("n2", "n3")


@dataclass
class Placed(GpuPair):
    """GPU ranks whose shims see an inventory."""

    def _beside(self, node: str) -> None:
        super()._beside(node)
        path = f"{self.env['LD_LIBRARY_PATH']}:{library()}"
        self.env = {**self.env, "LD_LIBRARY_PATH": path, "FAKE_NVML": str(self.told_of(node))}
        self.has_driver(DRIVER if node != "n2" else "570.1", node)

    def told_of(self, node: str) -> Path:
        """What NVML tells there."""
        return self.shared / f"nvml.{node}"

    def has_driver(self, version: str, *nodes: str) -> None:
        """The nodes have this driver from now on."""
        for node in nodes:
            self.told_of(node).write_text(described(uuids_of(node), driver=version))


@pytest_asyncio.fixture
async def placed(
    make_lab: Callable[..., Lab], criu_path: str, tmp_path: Path
) -> AsyncIterator[Placed]:
    """The job on n0 and n1; n3 is a spare like them, n2 has another driver."""
    made = Placed(make_lab([*NODES, *SPARES]), tmp_path / "shared", criu_path, policy=POLICY)
    try:
        await made.start(spares=SPARES)
        yield made
    finally:
        await made.stop()


async def test_a_renewed_driver_and_then_a_lost_node(placed: Placed) -> None:
    taken = await placed.snapshot()
    for worker in taken.workers:
        assert [gpu.uuid for gpu in worker.gpus] == uuids_of(worker.node)
        assert (worker.gpu_driver, worker.cuda_version) == (DRIVER, "13.0")
        assert any(each.startswith("allstop ") for each in worker.versions)
        assert (worker.gpu_engine, worker.gpus_unseen) == (placed.engine, "")

    placed.has_driver("590.44.01", "n0", "n1", "n3")

    async def refused() -> bool:
        return (await placed.client.plan(JOB)).plan is None

    await until("the new driver to be seen", refused)
    failure = await Action(placed.client.restore(JOB)).failed()
    assert isinstance(failure, NoPlan)
    assert any(f"590.44.01, needed exactly {DRIVER}" in line for line in failure.details)
    started = (await Action(placed.client.restore(JOB, cold_start=True)).ended()).restore
    assert started is not None
    assert (started.state, started.cold) == (RestoreState.RUNNING, True)
    assert "needed exactly" in started.cold_why
    assert {place.to_node for place in started.plan.placements} == set(NODES)
    await placed.chains_are_right()  # from the first step on

    again = await placed.snapshot()
    placed.host("n1").power_off()

    async def lost() -> bool:
        views = {view.facts.node: view.state for view in await placed.client.nodes()}
        return views["n1"] == "lost"

    await until("the loss of n1", lost)
    planned = await placed.client.plan(JOB, explain=True)
    assert planned.plan is not None, planned.failure
    assert [place.to_node for place in planned.plan.placements] == ["n0", "n3"]
    stays, moves = (place.devices for place in planned.plan.placements)
    assert stays == ()
    assert [(move.old, move.new) for move in moves] == [
        *zip(uuids_of("n1"), uuids_of("n3"), strict=True)
    ]
    reasons = {each.node: each.reasons for each in planned.refused if each.worker == 1}
    assert reasons["n2"] == ("NVIDIA driver 570.1, needed exactly 590.44.01",)
    assert {(fit.node, fit.worker) for fit in planned.fits if fit.chosen} == {("n0", 0), ("n3", 1)}

    back = (await Action(placed.client.restore(JOB, again.snapshot)).ended()).restore
    assert back is not None
    assert (back.state, back.cold) == (RestoreState.RUNNING, False)
    await placed.chains_are_right()
    assert placed.states("n3") == ["running", "running"]
