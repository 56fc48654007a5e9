"""Out of a round that has come to GPU_LOCK or GPU_SAVE: all ranks go on, as if nothing had been."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from bench.gpu.ranks import Ranks
from coordinator.core.errors import DriverError
from tests.gpu.conftest import Bench
from tests.gpu.kit import is_fake, size_mib
from worker_shim.agent.gpus import put_back
from worker_shim.agent.order import Deadline
from worker_shim.cuda.port import CudaState

pytestmark = [pytest.mark.gpu, pytest.mark.root, pytest.mark.timeout(300)]

S = CudaState
DEADLINE_S = 120.0
WORK_S = 3.0 if is_fake() else 15.0  # a program that attaches to a driver takes seconds
LOCK_S = 0.5  # shorter than the work


async def started(gpu: Bench, pair: Sequence[Sequence[str]]) -> tuple[Ranks, list[str]]:
    """Both ranks after two steps, and what two more must come to."""
    expected = [await gpu.undisturbed(program) for program in pair]
    ranks = await gpu.start(*pair)
    await ranks.ask_all(f"fill weights {size_mib()}")
    assert await ranks.ask_all("step weights 2") == [before for before, _ in expected]
    return ranks, [after for _, after in expected]


async def states(ranks: Ranks) -> list[CudaState]:
    """In the order of the lock."""
    processes = await ranks.gpu_processes()
    return [await ranks.cuda.state(each, deadline_s=DEADLINE_S) for each in processes]


async def undo(ranks: Ranks) -> None:
    """As a shim does it, from any phase."""
    drivers = SimpleNamespace(cuda=ranks.cuda, device_turn=asyncio.Lock())
    gpus = await ranks.gpu_processes()
    worker: Any = SimpleNamespace(gpus=gpus, drivers=drivers, tree=ranks.tree, where=None)
    await put_back(worker, Deadline(DEADLINE_S))
    assert await states(ranks) == [S.RUNNING] * 2


async def test_a_rank_whose_work_outlasts_the_lock(
    gpu: Bench, pair: Sequence[Sequence[str]]
) -> None:
    ranks, after = await started(gpu, pair)
    first, second = await ranks.gpu_processes()
    numbers = {int(await ranks.ask(number, "pid")): number for number in range(ranks.count)}
    await gpu.driver.lock(first, timeout_s=DEADLINE_S, deadline_s=DEADLINE_S)
    await ranks.ask(numbers[second.pid], f"work {WORK_S}")
    with pytest.raises(DriverError, match="NOT_READY") as failed:
        await gpu.driver.lock(second, timeout_s=LOCK_S, deadline_s=DEADLINE_S)
    assert failed.value.definite
    assert await states(ranks) == [S.LOCKED, S.RUNNING]
    await undo(ranks)
    assert await ranks.ask_all("step weights 2") == after


@pytest.mark.parametrize("saved", [1, 2])
async def test_with_some_saved_and_some_locked(
    gpu: Bench, pair: Sequence[Sequence[str]], saved: int
) -> None:
    ranks, after = await started(gpu, pair)
    await ranks.lock()
    for process in (await ranks.gpu_processes())[:saved]:
        await gpu.driver.checkpoint(process, deadline_s=DEADLINE_S)
    assert await states(ranks) == [S.CHECKPOINTED] * saved + [S.LOCKED] * (2 - saved)
    await undo(ranks)
    assert await ranks.ask_all("step weights 2") == after
