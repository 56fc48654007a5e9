"""The health of GPUs by NVML: the real pynvml in its helper, over a library that reads a file."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from coordinator.core.health_records import GpuTrouble, TroubleKind
from tests.support.dcgm import exporter
from tests.support.nvml import A, B, NvmlNode
from tests.support.replica import until
from worker_shim.health.nvml import NvmlWatch
from worker_shim.health.troubles import Troubles
from worker_shim.health.watch import HealthWatch

pytestmark = pytest.mark.cc

K = TroubleKind
FIRST = ("ecc 0 0", "remap 0 0 0 0", "recovery 0")  # of the second GPU, which is the last one
NO_EVENTS = ("nvmlEventSetCreate", "nvmlEventSetWait_v2")


@pytest.fixture
def node(tmp_path: Path) -> NvmlNode:
    """Two GPUs, and a driver that tells of events."""
    made = NvmlNode(tmp_path)
    made.has("events", *FIRST)
    return made


class Watched:
    """One watch at work, and what it knows."""

    def __init__(self, watch: NvmlWatch, troubles: Troubles) -> None:
        self.watch, self.troubles = watch, troubles
        self.news = asyncio.Event()
        troubles.changed = self.news.set

    async def until(self, wanted: Callable[[tuple[GpuTrouble, ...]], object]) -> None:
        """Wait until what is known is what is wanted."""
        async with asyncio.timeout(20):
            while not wanted(self.troubles.now()):
                self.news.clear()
                await self.news.wait()

    async def has(self, *wanted: tuple[str, TroubleKind, int, int, bool]) -> None:
        def said(troubles: tuple[GpuTrouble, ...]) -> bool:
            found = {(t.uuid, t.kind, t.code, t.count, t.fresh) for t in troubles}
            return found == set(wanted)

        await self.until(said)


@asynccontextmanager
async def watched(
    node: NvmlNode, *without: str, poll_s: float = 0.1, silent_s: float = 10.0
) -> AsyncIterator[Watched]:
    """Watch, from the first look on."""
    troubles = Troubles()
    watch = NvmlWatch(
        troubles, lambda: True, env=node.environment(*without), poll_s=poll_s, silent_s=silent_s,
        again_s=0.05,
    )  # fmt: skip
    made = Watched(watch, troubles)
    task = asyncio.create_task(watch.run())
    try:
        async with asyncio.timeout(20):
            await watch._looked.wait()
        yield made
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        assert watch._helper is None


async def test_an_event_of_the_driver_is_told_at_once(node: NvmlNode) -> None:
    async with watched(node, poll_s=3600.0) as seen:
        node.happens(1, 79)
        await seen.has((B, K.XID, 79, 1, True))
        node.happens(1, 79)
        node.happens(0, 13)
        await seen.has((B, K.XID, 79, 2, True), (A, K.XID, 13, 1, True))


async def test_another_event_makes_the_counters_be_read(node: NvmlNode) -> None:
    async with watched(node, poll_s=3600.0) as seen:
        node.has("events", "ecc 2 2")
        node.tells(1, 2)  # a double bit error
        await seen.has((B, K.ECC, 0, 2, True))


@pytest.mark.parametrize("without", [(), NO_EVENTS], ids=["events", "counters alone"])
@pytest.mark.parametrize(
    ("line", "wanted"),
    [
        ("ecc 3 3", (B, K.ECC, 0, 3, True)),
        ("remap 0 1 1 0", (B, K.REMAP_PENDING, 0, 1, True)),
        ("remap 0 1 0 1", (B, K.REMAP_FAILED, 0, 1, True)),
        ("retired 1", (B, K.REMAP_PENDING, 0, 1, True)),
        ("recovery 4", (B, K.RECOVERY, 4, 1, True)),
        ("fault nvmlDeviceGetMemoryInfo 15 1", (B, K.LOST, 0, 1, True)),
        ("fault nvmlDeviceGetMemoryInfo 16 1", (B, K.LOST, 0, 1, True)),
    ],
)
async def test_counters_are_read_now_and_then(
    node: NvmlNode,
    line: str,
    wanted: tuple[str, TroubleKind, int, int, bool],
    without: tuple[str, ...],
) -> None:
    async with watched(node, *without) as seen:
        node.has("events", *FIRST, line)
        await seen.has(wanted)
        node.has("events", *FIRST)
        await seen.has()


async def test_what_was_there_is_from_before(node: NvmlNode) -> None:
    node.has("events", "ecc 7 9", "remap 0 0 0 1")
    async with watched(node) as seen:
        await seen.has((B, K.ECC, 0, 7, False), (B, K.REMAP_FAILED, 0, 1, False))


async def test_a_look_that_is_asked_for_is_made_now(node: NvmlNode) -> None:
    async with watched(node, poll_s=3600.0) as seen:
        for count in (1, 2, 3):
            node.has("events", f"ecc {count} {count}")
            await asyncio.wait_for(seen.watch.look(), 10)
            assert [t.count for t in seen.troubles.now()] == [count]


@pytest.mark.parametrize("how", ["hang", "crash"])
async def test_a_library_that_hangs_or_crashes_is_left_and_tried_again(
    node: NvmlNode, how: str
) -> None:
    async with watched(node, silent_s=1.0) as seen:
        before = seen.watch._helper
        assert before is not None
        seen.watch._looked.clear()
        node.has("events", "ecc 1 1", f"fault nvmlDeviceGetMemoryInfo {how}")
        await until(lambda: seen.watch._helper is not before)
        assert before.returncode is not None
        node.has("events", "ecc 1 1")
        await seen.has((B, K.ECC, 0, 1, True))


async def test_no_driver_is_no_trouble_and_one_that_does_not_begin_is_told(
    node: NvmlNode,
) -> None:
    node.has("fault nvmlInitWithFlags 18")
    watch = NvmlWatch(Troubles(), lambda: True, env=node.environment(), again_s=3600.0)
    task = asyncio.create_task(watch.run())
    try:
        await until(lambda: watch.why)
        assert "mismatch" in watch.why
        await watch.look()
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def test_the_helper_ends_with_whoever_started_it(node: NvmlNode) -> None:
    async with watched(node, poll_s=3600.0) as seen:
        helper = seen.watch._helper
        assert helper is not None
        assert helper.stdin is not None
        helper.stdin.close()
        assert await asyncio.wait_for(helper.wait(), 10) == 0


async def test_both_sources_are_asked_before_a_record_is_written(
    node: NvmlNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("worker_shim.health.nvml.POLL_S", 3600.0)
    monkeypatch.setattr("worker_shim.health.dcgm.POLL_S", 3600.0)
    with exporter(A, B) as other:
        health = HealthWatch(lambda: True, dcgm_url=other.url, env=node.environment())
        task = asyncio.create_task(health.run())
        try:
            nvml = health._sources[0]
            assert isinstance(nvml, NvmlWatch)
            await until(lambda: nvml._looked.is_set() and other.scrapes)
            node.has("events", "ecc 4 4")
            other.values["DCGM_FI_DEV_ROW_REMAP_FAILURE", 0] = 1
            found = await health.settled(within_s=10.0)
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
    assert {(t.uuid, t.kind, t.count, t.source, t.fresh) for t in found} == {
        (B, K.ECC, 4, "nvml", False),
        (A, K.REMAP_FAILED, 1, "dcgm", False),
    }


async def test_who_does_not_answer_is_not_waited_for(node: NvmlNode) -> None:
    health = HealthWatch(lambda: True, env=node.environment())
    task = asyncio.create_task(health.run())
    try:
        nvml = health._sources[0]
        assert isinstance(nvml, NvmlWatch)
        async with asyncio.timeout(20):
            await nvml._looked.wait()
        node.has("events", "fault nvmlDeviceGetMemoryInfo hang")
        assert await asyncio.wait_for(health.settled(within_s=0.3), 10) == ()
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
