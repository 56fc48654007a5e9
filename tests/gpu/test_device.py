"""The driver port on a GPU: states, what comes back, what is left open, how it refuses."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path

import pytest

from bench.gpu.measuring import overwrite
from coordinator.core.errors import DriverError
from tests.gpu.conftest import Bench
from tests.gpu.kit import size_mib
from worker_shim.criu.driver import CriuDriver
from worker_shim.cuda.port import CudaState
from worker_shim.process.proc import look

pytestmark = [pytest.mark.gpu, pytest.mark.root, pytest.mark.timeout(300)]

S = CudaState
DEADLINE_S = 120.0
PAGE_BYTES = 4096


async def test_there_and_back(gpu: Bench, program: Sequence[str]) -> None:
    before, after = await gpu.undisturbed(program)
    ranks = await gpu.start(program)
    await ranks.ask(0, f"fill weights {size_mib()}")
    assert await ranks.ask(0, "step weights 2") == before
    tree = ranks.tree()
    (process,) = await ranks.gpu_processes()
    assert gpu.driver.holders(tree) == (process.pid,)
    await ranks.lock()
    await ranks.save()
    assert await gpu.driver.state(process, deadline_s=DEADLINE_S) is S.CHECKPOINTED
    assert gpu.driver.holders(ranks.tree()) == ()
    grown = sum(each.rss_bytes for each in ranks.tree().processes)
    grown -= sum(each.rss_bytes for each in tree.processes)
    assert grown >= (size_mib() << 20) * 0.7
    await ranks.restore()
    assert await gpu.driver.state(process, deadline_s=DEADLINE_S) is S.LOCKED
    await ranks.unlock()
    assert await ranks.ask(0, "sum weights") == before
    assert await ranks.ask(0, "step weights 2") == after != before


async def test_memory_that_another_process_has_had_meanwhile(gpu: Bench, tmp_path: Path) -> None:
    ranks = await gpu.start(gpu.machine.rank)
    await ranks.ask(0, f"fill weights {size_mib()}")
    before = await ranks.ask(0, "sum weights")
    await ranks.lock()
    await ranks.save()
    room = gpu.machine.free_bytes - (size_mib() << 20)
    await overwrite(gpu.machine, gpu.driver, min(room >> 21, 4 * size_mib()), tmp_path / "others")
    await ranks.restore()
    await ranks.unlock()
    assert await ranks.ask(0, "sum weights") == before


async def test_the_wrong_state_is_named(gpu: Bench) -> None:
    ranks = await gpu.start(gpu.machine.rank)
    (process,) = await ranks.gpu_processes()
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
async def test_through_criu(
    gpu: Bench, pair: Sequence[Sequence[str]], criu: CriuDriver, tmp_path: Path
) -> None:
    """Two processes on one device are killed between save and restore, so all is in the images.

    All are locked before one is saved, and all restored before one is unlocked.
    """
    expected = [await gpu.undisturbed(program) for program in pair]
    ranks = await gpu.start(*pair)
    await ranks.ask_all(f"fill weights {size_mib()}")
    before = await ranks.ask_all("step weights 2")
    assert before == [first for first, _ in expected]
    assert len(await ranks.gpu_processes()) == len(pair)
    await ranks.lock()
    await ranks.save()
    assert gpu.driver.holders(ranks.tree()) == ()
    stats = await ranks.dump(criu, tmp_path / "images")
    assert stats.pages_written * PAGE_BYTES >= (2 * size_mib() << 20) * 0.8
    await ranks.kill()
    await ranks.criu_restore(criu, tmp_path / "images")
    await ranks.restore()
    await ranks.unlock()
    assert await ranks.ask_all("sum weights") == before
    assert await ranks.ask_all("step weights 2") == [later for _, later in expected]
