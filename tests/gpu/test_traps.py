"""What the preflight sees of ranks on a GPU, and what a save leaves of them."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Sequence

import pytest

from bench.gpu.machine import Machine
from bench.gpu.ranks import Ranks
from tests.gpu.conftest import Bench
from tests.gpu.kit import ROOT, size_mib
from worker_shim.compatibility.features import TreeFeature
from worker_shim.compatibility.node import without_gpus
from worker_shim.compatibility.situation import Situation
from worker_shim.compatibility.tree import situation
from worker_shim.process.view import view

pytestmark = [pytest.mark.gpu, pytest.mark.root, pytest.mark.timeout(300)]

WATCH_S = 60.0
MANAGED_MIB = 64


def judged(ranks: Ranks) -> Situation:
    """What rows are judged on; nothing of the node."""
    return situation(view(ranks.tree()), without_gpus())


async def test_nothing_is_left_open_by_nvml(gpu: Bench, pair: Sequence[Sequence[str]]) -> None:
    """Nor does it look like a MIG instance, or plain memory like managed memory."""
    ranks = await gpu.start(*pair)
    await ranks.ask_all(f"fill weights {size_mib()}")
    await ranks.ask_all("nvml")
    seen = judged(ranks)
    assert len(seen.features[TreeFeature.GPU]) == len(pair)
    assert TreeFeature.MIG_DEVICE not in seen.features, seen.features
    assert TreeFeature.MANAGED_MEMORY not in seen.features, seen.features
    before = await ranks.ask_all("sum weights")
    await ranks.lock()
    await ranks.save()
    assert gpu.driver.holders(ranks.tree()) == ()
    await ranks.restore()
    await ranks.unlock()
    assert await ranks.ask_all("sum weights") == before


async def test_managed_memory_is_seen(gpu: Bench) -> None:
    ranks = await gpu.start(gpu.machine.rank)
    await ranks.ask(0, f"managed {MANAGED_MIB}")
    assert TreeFeature.MANAGED_MEMORY in judged(ranks).features


async def test_a_forked_child_that_holds_the_device_is_named(gpu: Bench) -> None:
    """Before anything is locked; it has no state of its own, so nothing could save it."""
    ranks = await gpu.start(gpu.machine.rank)
    await ranks.ask(0, f"fill weights {size_mib()}")
    child = int(await ranks.ask(0, "fork"))
    (process,) = await ranks.gpu_processes()
    assert set(gpu.driver.holders(ranks.tree())) == {process.pid, child}
    (seen,) = judged(ranks).features[TreeFeature.INHERITED_DEVICE]
    assert seen.pid == child


async def test_the_watcher_of_gpu_health_begins(machine: Machine) -> None:
    """With events of the driver, and counters of every GPU."""
    line = (sys.executable, "-m", "worker_shim.health.watcher", "60")
    pipe = asyncio.subprocess.PIPE
    watcher = await asyncio.create_subprocess_exec(*line, cwd=ROOT, stdin=pipe, stdout=pipe)
    try:
        assert watcher.stdin is not None
        assert watcher.stdout is not None
        async with asyncio.timeout(WATCH_S):
            began, looked = [json.loads(await watcher.stdout.readline()) for _ in range(2)]
        assert began == {"event": "began", "by_events": True}
        assert looked["gpus"]
        for each in looked["gpus"]:
            assert {"ecc", "remap_pending", "remap_failed"} <= each.keys(), each
            assert not each["lost"]
        watcher.stdin.close()
        async with asyncio.timeout(WATCH_S):
            assert await watcher.wait() == 0
    finally:
        if watcher.returncode is None:
            watcher.kill()
            await watcher.wait()
