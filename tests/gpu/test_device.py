"""The driver port on a GPU: states, what comes back, what is left open, how it refuses."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import AsyncIterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import pytest

from bench.gpu import Process, measure_one
from coordinator.core.errors import DriverError
from tests.gpu.criu import Saved
from tests.gpu.kit import Machine, machine
from worker_shim.cuda.port import CudaDriver, CudaState, GpuProcess
from worker_shim.process.port import Tree
from worker_shim.process.proc import look

pytestmark = [pytest.mark.gpu, pytest.mark.root, pytest.mark.timeout(300)]

S = CudaState
DEADLINE_S = 120.0


@dataclass
class Bench:
    """A machine with a GPU and a way to its driver."""

    machine: Machine
    driver: CudaDriver

    async def process(self, one: Process) -> GpuProcess:
        (found,) = await self.driver.processes(tree_of(one), deadline_s=DEADLINE_S)
        return found

    async def saved(self, one: Process) -> GpuProcess:
        """The process's device memory is in the process."""
        process = await self.process(one)
        await self.driver.lock(process, timeout_s=10, deadline_s=DEADLINE_S)
        await self.driver.checkpoint(process, deadline_s=DEADLINE_S)
        return process

    async def back(self, process: GpuProcess) -> None:
        await self.driver.restore(process, {}, deadline_s=DEADLINE_S)
        assert await self.driver.state(process, deadline_s=DEADLINE_S) is S.LOCKED
        await self.driver.unlock(process, deadline_s=DEADLINE_S)


def tree_of(one: Process) -> Tree:
    return look(one.process.pid)


@pytest.fixture(params=["library", "program"])
async def gpu(request: pytest.FixtureRequest) -> AsyncIterator[Bench]:
    there = machine(request.param)
    if request.param == "program" and shutil.which("cuda-checkpoint") is None:
        pytest.skip("there is no cuda-checkpoint in PATH")
    made = Bench(there, there.driver())
    yield made
    await made.driver.close()


async def test_there_and_back(gpu: Bench) -> None:
    with closing(gpu.machine.rank()) as one:
        assert one.ask(f"fill weights {gpu.machine.mib}") == "done"
        before, tree = one.ask("sum weights"), tree_of(one)
        assert gpu.driver.holders(tree) == (one.process.pid,)
        process = await gpu.saved(one)
        assert await gpu.driver.state(process, deadline_s=DEADLINE_S) is S.CHECKPOINTED
        assert gpu.driver.holders(tree) == ()
        grown = tree_of(one).processes[0].rss_bytes - tree.processes[0].rss_bytes
        assert grown >= (gpu.machine.mib << 20) * 0.9
        await gpu.back(process)
        assert one.ask("sum weights") == before


async def test_the_wrong_state_is_named(gpu: Bench) -> None:
    with closing(gpu.machine.rank()) as one:
        process = await gpu.process(one)
        with pytest.raises(DriverError, match="ILLEGAL_STATE"):
            await gpu.driver.unlock(process, deadline_s=DEADLINE_S)
        assert await gpu.driver.state(process, deadline_s=DEADLINE_S) is S.RUNNING


async def test_a_process_without_cuda_has_no_state(gpu: Bench) -> None:
    stranger = await asyncio.create_subprocess_exec("sleep", "60")
    try:
        tree = look(stranger.pid)
        assert await gpu.driver.processes(tree, deadline_s=DEADLINE_S) == ()
    finally:
        stranger.kill()
        await stranger.wait()


@pytest.mark.criu
async def test_through_criu(gpu: Bench, tmp_path: Path, criu_path: str) -> None:
    """Device memory goes through the images: the process is killed between save and restore."""
    out = tmp_path / "sums"
    argv = [*gpu.machine.program]
    async with Saved(gpu.driver, tmp_path, criu_path) as saved:
        script = f"fill weights {gpu.machine.mib}\ncount weights {out}\n"
        await saved.launch(argv, script, gpu.machine.env)
        before = await saved.lines(out, 3)
        stats = await saved.save()
        assert stats.pages_written * 4096 >= gpu.machine.mib << 20
        await saved.kill()
        await saved.restore()
        after = await saved.lines(out, len(before) + 3)
        assert len(set(after)) == 1, "the same device memory all the time"


async def test_what_it_costs_can_be_measured(gpu: Bench) -> None:
    taken = await measure_one(gpu.machine.engine, gpu.machine.mib, 1, gpu.machine.program)
    assert min(taken.copy_ms, taken.save_ms, taken.restore_ms) > 0
