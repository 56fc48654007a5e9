"""Wrapped optimizers below a torchrun that may restart them, with c10d rendezvous on two nodes.

torchrun's agents count each other as gone without heartbeats for a while, by the wall clock, and a
restore comes later than that as a rule.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import pytest_asyncio

from lab import Lab
from tests.integration.badluck.kit import JOB, NODES, RANKS, RANKS_PER_NODE, Pair
from tests.integration.hook.test_wrapped import PROGRAM

pytestmark = [
    pytest.mark.root,
    pytest.mark.criu,
    pytest.mark.etcd,
    pytest.mark.torch,
    pytest.mark.slow,
    pytest.mark.timeout(240),
]

KEEP_ALIVE = "keep_alive_interval=1,keep_alive_max_attempt=2"
AWAY_S = 4.0  # more than torchrun waits for a heartbeat then
STEP_S = 0.05


@dataclass
class Elastic(Pair):
    """The job below torchrun, which may restart its ranks three times."""

    def start_worker(self, node: str) -> None:
        """The node's agent and its ranks."""
        host, first = self.host(node), self.host(NODES[0])
        torchrun = [
            *(sys.executable, "-m", "torch.distributed.run"),
            *("--nnodes", str(len(NODES)), "--nproc-per-node", str(RANKS_PER_NODE)),
            *("--rdzv-backend", "c10d", "--rdzv-id", JOB, "--max-restarts", "3"),
            *("--rdzv-endpoint", f"{first.address}:29500", "--local-addr", host.address),
            *("--rdzv-conf", f"is_host={int(host is first)},{KEEP_ALIVE}"),
        ]
        self.deployment.options = ("--criu", str(self.criu_of(node)))
        self.deployment.start_worker(
            host,
            JOB,
            workers=len(NODES),
            worker=NODES.index(node),
            argv=[*torchrun, str(PROGRAM), "100000", "1000", str(self.shared), str(STEP_S)],
            env={"OMP_NUM_THREADS": "1", "LOGLEVEL": "INFO"},
        )

    def restarts(self) -> int:
        """How often torchrun has restarted ranks, on all nodes."""
        logs = [self.deployment.log(node).read_text() for node in NODES]
        return sum(log.count("will restart worker group") for log in logs)

    def twice(self) -> dict[int, list[set[str]]]:
        """Of each rank what it told of the steps that it took again; before is kept aside."""
        again: dict[int, list[set[str]]] = {}
        for rank in RANKS:
            now = told(self.shared / "told" / str(rank))
            (aside,) = (self.shared / "told").glob(f"{rank}.after-*")
            again[rank] = [{what, now[step]} for step, what in told(aside).items() if step in now]
        return again


def told(path: Path) -> dict[int, str]:
    """What there is of each step; the last line may be half written."""
    lines = [line.split(" ", 1) for line in path.read_text().splitlines()[:-1]]
    return {int(step): what for step, what in lines}


@pytest_asyncio.fixture
async def job(tmp_path: Path, criu_path: str) -> AsyncIterator[Elastic]:
    with Lab(tmp_path / "lab", NODES) as lab:
        job = Elastic(lab, tmp_path, criu_path)
        await job.start()
        yield job
        await job.stop()


async def test_a_torchrun_that_may_restart_its_ranks_does_not_for_a_restore(job: Elastic) -> None:
    assert "torchrun may start the ranks again by itself" in job.deployment.log("n0").read_text()
    taken = await job.snapshot()
    assert {rank.boundary for worker in taken.workers for rank in worker.ranks} == {taken.step}
    await asyncio.sleep(AWAY_S)  # the agents' heartbeats in the snapshot are old by then
    await job.restore()
    await asyncio.sleep(AWAY_S)
    await job.moves()
    assert job.restarts() == 0, "nobody was missed"
    for again in job.twice().values():
        assert len(again) > 1
        assert {len(each) for each in again} == {1}, "the same parameters at each step"
    later = await job.snapshot()
    assert {rank.boundary for worker in later.workers for rank in worker.ranks} == {later.step}
    assert later.step > taken.step
