"""Whole rounds of a PyTorch job on the GPU: real shim, coordinator, torchrun, CRIU on one host."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from bench.gpu.job import ENV, HOST, WAIT_S, Job, read_digests, torchrun
from bench.gpu.machine import Machine, lacking_criu
from coordinator.core.errors import DriverError
from coordinator.core.model import Snapshot
from lab import Lab
from tests.gpu import kit
from tests.integration.runs.kit import follow
from worker_shim.hook.communicators import REBUILD
from worker_shim.nccl.launching import environment

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.root,
    pytest.mark.criu,
    pytest.mark.etcd,
    pytest.mark.torch,
    pytest.mark.timeout(400),
]

JOB = "training"
SIZE = ("--mib", "1")
CALM_STEPS = 150  # by which the snapshot has been taken
AHEAD = 5


@dataclass
class Watched:
    """The job, and what every rank of the same job by itself comes to, by step."""

    job: Job
    calm: list[dict[int, str]]

    async def is_right(self) -> None:
        """It goes on, and every step of every rank came to what it does undisturbed.

        Steps that nothing is known of are left out.
        """
        await self.job.goes_on(AHEAD)
        for rank, calm in enumerate(self.calm):
            wrong = {s: told for s, told in self.job.digests(rank) if calm.get(s, told) != told}
            assert wrong == {}


def run_calmly(machine: Machine, ranks: int, folder: Path) -> list[dict[int, str]]:
    """The same job by itself, on a host of its own."""
    folder.mkdir()
    line = torchrun(machine, ranks, folder, *SIZE, "--steps", str(CALM_STEPS), "--pace-s", "0")
    with Lab(folder / "lab", [HOST]) as lab:
        done = lab.hosts[HOST].run(
            line, WAIT_S, check=False, env={**os.environ, **ENV}, cwd=kit.ROOT
        )
        assert done.returncode == 0, done.stderr[-2000:]
    return [dict(read_digests(folder / str(rank))) for rank in range(ranks)]


@asynccontextmanager
async def trains(
    machine: Machine, root: Path, criu: str, ranks: int, *options: str, **env: str
) -> AsyncIterator[Watched]:
    """The job under a shim, at its first steps; it has ended by itself afterwards."""
    calm = await asyncio.to_thread(run_calmly, machine, ranks, root / "calm")
    with Lab(root / "lab", [HOST]) as lab:
        async with Job(JOB, lab, root, ranks, criu) as job:
            job.start(machine, *SIZE, *options, **env)
            watched = Watched(job, calm)
            await watched.is_right()
            yield watched


async def goes_through_a_round(watched: Watched) -> Snapshot:
    """A checkpoint after which it goes on, and a restore from which it does."""
    client, ranks = watched.job.client, watched.job.ranks
    taken = (await follow(client.checkpoint(JOB))).snapshot
    assert taken is not None
    (worker,) = taken.workers
    assert len(worker.gpu_pids) == ranks
    assert worker.gpu_bytes > 0
    assert taken.step + AHEAD < CALM_STEPS, "what comes after it is known"
    await watched.is_right()
    restored = await follow(client.restore(JOB, taken.snapshot))
    assert restored.state == "RUNNING", restored.reason
    await watched.is_right()
    for rank in range(ranks):
        steps = [step for step, _ in watched.job.digests(rank)]
        assert len(set(steps)) < len(steps), "it began again at the snapshot"
    return taken


@pytest.fixture(scope="module")
def usable_criu(criu_path: str) -> str:
    """CRIU and PyTorch are needed for all of this."""
    if why := lacking_criu() or kit.why_no_torch():
        pytest.skip(why)
    return criu_path


async def test_two_ranks_on_one_gpu_by_gloo(
    machine: Machine, tmp_path: Path, usable_criu: str
) -> None:
    engine = {"ALLSTOP_GPU_ENGINE": machine.engines[0], "ALLSTOP_NCCL": "none"}
    async with trains(machine, tmp_path, usable_criu, 2, **engine) as watched:
        taken = await goes_through_a_round(watched)
        assert taken.world_size == 2


async def test_one_rank_whose_nccl_communicator_is_rebuilt(
    machine: Machine, tmp_path: Path, usable_criu: str
) -> None:
    try:
        given = os.environ.get("ALLSTOP_NCCL_SHIM")
        library = Path(given) if given else None
        environment(os.environ, tmp_path, mode=REBUILD, library=library, gpus=True)
    except DriverError as error:
        pytest.skip(f"{error.what}; {error.advice}")
    env = {"ALLSTOP_GPU_ENGINE": machine.engines[-1], "ALLSTOP_NCCL": REBUILD}
    async with trains(machine, tmp_path, usable_criu, 1, "--backend", "nccl", **env) as watched:
        taken = await goes_through_a_round(watched)
        assert [worker.nccl for worker in taken.workers] == [REBUILD]
