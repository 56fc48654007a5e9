"""The GPU phases over fake drivers: what is done in which order, and how each is undone."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from coordinator.core.model import Gpu, GpuMove
from tests.unit.agent.fakes import RANK, ROOT
from tests.unit.agent.gpu_rig import saved, states, with_devices
from tests.unit.agent.rig import Rig
from worker_shim.agent import dumping, gpus, holding
from worker_shim.cuda.none import NoCuda
from worker_shim.cuda.port import CudaState
from worker_shim.inventory.inventory import Inventory
from worker_shim.process.proc import Memory

S = CudaState
GIB = 1 << 30


@pytest.fixture
def gpu(rig: Rig) -> Rig:
    return with_devices(rig)


async def test_there_and_back(gpu: Rig) -> None:
    await saved(gpu)
    assert states(gpu) == [S.CHECKPOINTED] * 2
    assert gpu.process.state == "S", "the driver needs the processes to run"
    dumped = await gpu.done("DUMP", cut="CUT_STEP")
    assert gpu.process.state == "T"
    assert list(dumped.record.gpu_pids) == [ROOT, RANK]
    await gpu.done("RESUME")
    assert states(gpu) == [S.RUNNING] * 2
    assert gpu.free() or gpu.worker.dumped
    one_by_one = [(call, pid) for call in ("lock", "checkpoint") for pid in (ROOT, RANK)]
    back = [(call, pid) for call in ("restore", "unlock") for pid in (ROOT, RANK)]
    assert gpu.cuda.done == one_by_one + back, "none runs before all are restored"


async def test_the_coordinator_is_told_that_devices_are_in_use(gpu: Rig) -> None:
    await gpu.agent.report()
    assert gpu.worker.report().gpu
    gpu.cuda.held.clear()
    await gpu.agent.report()
    assert gpu.worker.report().gpu, "a device that was in use once may be so again"


async def test_no_dump_while_a_device_is_open(gpu: Rig) -> None:
    await gpu.to("PARK")
    refused = (await gpu.order("DUMP", cut="CUT_STEP")).failure
    assert (refused.kind, "device memory was not saved" in refused.what) == ("Refused", True)
    assert "dump" not in gpu.images.calls
    await gpu.done("UNDO", reason="x")
    assert gpu.free()


async def test_a_frozen_job_is_locked_before_it_is_stopped(gpu: Rig) -> None:
    await gpu.done("GPU_LOCK", cut="CUT_FREEZE")
    assert gpu.worker.action == "a1"
    await gpu.done("GPU_SAVE")
    await gpu.done("DUMP", cut="CUT_FREEZE")
    await gpu.done("UNDO", reason="x")
    assert states(gpu) == [S.RUNNING] * 2
    assert gpu.free()


# -- what is checked -------------------------------------------------------------------------------


async def test_a_device_left_open_after_the_save_is_found(gpu: Rig) -> None:
    await gpu.to("PARK")
    await gpu.done("GPU_LOCK", cut="CUT_STEP")
    holders = gpu.cuda.holders
    gpu.cuda.holders = lambda tree: (RANK,)  # type: ignore[method-assign]
    refused = (await gpu.order("GPU_SAVE")).failure
    assert f"[{RANK}] still have a GPU open" in refused.what
    gpu.cuda.holders = holders  # type: ignore[method-assign]
    await gpu.done("UNDO", reason="x")
    assert states(gpu) == [S.RUNNING] * 2


async def test_a_forked_child_that_only_holds_the_device_is_named(gpu: Rig) -> None:
    await gpu.to("PARK")
    gpu.cuda.processes = _only_root(gpu)  # type: ignore[method-assign]
    refused = (await gpu.order("GPU_LOCK", cut="CUT_STEP")).failure
    assert f"processes [{RANK}] have a GPU open and no state on it" in refused.what
    assert "DataLoader" in refused.advice


def _only_root(rig: Rig) -> Any:
    real = rig.cuda.processes

    async def processes(tree: Any, *, deadline_s: float) -> Any:
        return tuple(p for p in await real(tree, deadline_s=deadline_s) if p.pid == ROOT)

    return processes


async def test_images_without_the_device_memory_are_a_lie(
    gpu: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    await gpu.to("PARK")
    await gpu.done("GPU_LOCK", cut="CUT_STEP")
    grown = iter((0, GIB))
    monkeypatch.setattr(gpus, "_memory_bytes", lambda worker: next(grown))
    await gpu.done("GPU_SAVE")
    lie = (await gpu.order("DUMP", cut="CUT_STEP")).failure
    assert f"less than the {GIB} of device memory" in lie.what
    gpu.images.pages = GIB // 4096
    await gpu.done("UNDO", reason="x")
    await gpu.to("PARK", "a2")
    await gpu.done("GPU_LOCK", "a2", cut="CUT_STEP")
    grown = iter((0, GIB))
    await gpu.done("GPU_SAVE", "a2")
    assert (await gpu.done("DUMP", "a2", cut="CUT_STEP")).record.gpu_bytes == GIB


def two_holding(held_gib: int) -> Inventory:
    """A look at two processes on one GPU."""
    held = {"GPU-0": {ROOT: held_gib * GIB // 2, RANK: held_gib * GIB // 2}}
    return Inventory(gpus=(Gpu(0, "GPU-0", "any", 80 * GIB, 0, "0"),), held=held)


class Looks:
    """Looks at GPUs: what an old one has seen, and what one does that is asked for now."""

    def __init__(self, old: Inventory, new: Inventory | None) -> None:
        self.old, self.new = old, new

    def before(self, moment_s: float) -> Inventory:
        return self.old

    async def since(self, moment_s: float, *, wait_s: float) -> Inventory | None:
        assert moment_s <= time.monotonic()
        assert 0 < wait_s <= gpus.LOOK_S
        return self.new


def looks(rig: Rig, old: Inventory, new: Inventory | None) -> None:
    object.__setattr__(rig.drivers, "gpus", Looks(old, new))


async def grown_by_one(gpu: Rig, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The answer to a GPU_SAVE by which the processes grow by 1 GiB together."""
    await gpu.to("PARK")
    await gpu.done("GPU_LOCK", cut="CUT_STEP")
    grown = iter((0, GIB))
    monkeypatch.setattr(gpus, "_memory_bytes", lambda worker: next(grown))
    return await gpu.order("GPU_SAVE")


@pytest.mark.parametrize(("held_gib", "fits"), [(20, False), (3, True)])
async def test_a_save_that_brings_no_memory_is_a_lie(
    gpu: Rig, monkeypatch: pytest.MonkeyPatch, held_gib: int, fits: bool
) -> None:
    """Two processes on one GPU; half a GiB of each is its context at least."""
    looks(gpu, Inventory(), two_holding(held_gib))
    saved = await grown_by_one(gpu, monkeypatch)
    assert saved.HasField("failure") is not fits
    assert fits or f"have grown by {GIB}" in saved.failure.what
    assert not fits or saved.note == f"{GIB} bytes of device memory"


@pytest.mark.parametrize("new", [two_holding(3), None])
async def test_no_save_is_a_lie_by_an_old_look(
    gpu: Rig, monkeypatch: pytest.MonkeyPatch, new: Inventory | None
) -> None:
    """The ranks gave memory back after that."""
    looks(gpu, two_holding(20), new)
    saved = await grown_by_one(gpu, monkeypatch)
    assert not saved.HasField("failure")
    assert ("nobody could compare" in saved.note) is (new is None)
    gpu.images.pages = GIB // 4096
    record = (await gpu.done("DUMP", cut="CUT_STEP")).record
    assert [held.held_bytes for held in record.gpu_held] == [(3 if new else 20) * GIB]
    assert [one.uuid for one in record.gpus] == ["GPU-0"]


async def test_a_lock_that_fails_waits_for_the_look_beside_it(gpu: Rig) -> None:
    looks(gpu, Inventory(), two_holding(3))
    gpu.cuda.faults["lock"] = 304
    await gpu.to("PARK")
    assert (await gpu.order("GPU_LOCK", cut="CUT_STEP")).HasField("failure")
    assert gpu.worker.gpus_seen is not None


async def test_each_process_may_keep_a_context_on_the_gpus_that_it_uses_only(
    gpu: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two processes with a GPU each: two contexts, not four."""
    held = {"GPU-0": {ROOT: 10 * GIB}, "GPU-1": {RANK: 10 * GIB}}
    both = tuple(Gpu(n, f"GPU-{n}", "any", 80 * GIB, 0, str(n)) for n in range(2))
    seen = Inventory(gpus=both, held=held)
    looks(gpu, Inventory(), seen)
    await gpu.to("PARK")
    await gpu.done("GPU_LOCK", cut="CUT_STEP")
    grown = iter((0, 17 * GIB))
    monkeypatch.setattr(gpus, "_memory_bytes", lambda worker: next(grown))
    assert f"have grown by {17 * GIB}" in (await gpu.order("GPU_SAVE")).failure.what


async def test_images_need_the_rest_of_the_memory_beside_that_of_the_devices(
    gpu: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """100 GiB of the processes' own do not stand for the 80 GiB that came out of the devices."""
    await gpu.to("PARK")
    await gpu.done("GPU_LOCK", cut="CUT_STEP")
    await gpu.done("GPU_SAVE")
    own = Memory(anonymous_bytes=80 * GIB, swapped_bytes=10 * GIB)
    monkeypatch.setattr(dumping, "memory_of", lambda pid: own)
    gpu.images.pages = 100 * GIB // 4096
    lie = (await gpu.order("DUMP", cut="CUT_STEP")).failure
    assert f"wrote {100 * GIB} bytes of processes that have {180 * GIB} of their own" in lie.what
    await gpu.done("UNDO", reason="x")
    await saved(gpu, "a2")
    gpu.images.pages = 179 * GIB // 4096
    await gpu.done("DUMP", "a2", cut="CUT_STEP")


async def test_memory_for_what_is_in_the_devices_is_checked_before_a_hold(gpu: Rig) -> None:
    huge = Gpu(0, "GPU-0", "any", 1 << 50, 0, "0")
    gpu.probe._facts = replace(gpu.probe.current(), gpus=(huge,))
    refused = (await gpu.order("HOLD", cut="CUT_STEP")).failure
    assert any(detail.startswith("host_memory") for detail in refused.details)
    assert any(detail.startswith("staging_space") for detail in refused.details)
    assert gpu.page.raised == []


@pytest.mark.parametrize(("in_memory", "fits"), [(False, True), (True, False)])
async def test_images_that_are_staged_in_memory_need_it_too(
    gpu: Rig, monkeypatch: pytest.MonkeyPatch, in_memory: bool, fits: bool
) -> None:
    gpu.probe._facts = replace(gpu.probe.current(), gpus=(Gpu(0, "GPU-0", "any", GIB, 0, "0"),))
    monkeypatch.setattr(holding, "in_memory", lambda root: in_memory)
    monkeypatch.setattr(holding, "memory", lambda: (4 * GIB, GIB * 3 // 2))
    findings = await holding.look_over(gpu.worker, gpu.worker.tree())
    found = [each for each in findings if each.code == "host_memory"]
    assert not found if fits else "staged in memory too" in found[0].text


async def test_gpus_of_which_nobody_knows_what_they_hold_are_named(gpu: Rig) -> None:
    gpu.probe._facts = replace(gpu.probe.current(), gpu_trouble="NVML is ill")
    held = await gpu.done("HOLD", cut="CUT_STEP")
    (found,) = held.findings
    assert found.code == "gpu_memory_unknown"
    assert "NVML is ill" in found.text


async def test_without_an_engine_gpu_ranks_are_refused(rig: Rig, tmp_path: Path) -> None:
    class Seen(NoCuda):
        def holders(self, tree: Any) -> tuple[int, ...]:
            return (RANK,)

    object.__setattr__(rig.drivers, "cuda", Seen())
    refused = (await rig.order("HOLD", cut="CUT_STEP")).failure
    assert "gpu" in refused.details[0]
    assert "570" in refused.what


# -- restore ---------------------------------------------------------------------------------------


async def snapshot(rig: Rig) -> Any:
    await saved(rig)
    await rig.done("DUMP", cut="CUT_STEP")
    await rig.done("RESUME")
    return await rig.done("PERSIST")


async def restored(rig: Rig) -> Any:
    stored = await snapshot(rig)
    for held in rig.cuda.held.values():
        held.state = S.CHECKPOINTED
    rig.cuda.done.clear()
    await rig.back_to("RESTORE", stored)
    return stored.record


async def test_a_restore_uses_the_map_and_nothing_runs_before_the_release(gpu: Rig) -> None:
    record = await restored(gpu)
    assert list(record.gpu_pids) == [ROOT, RANK]
    devices = (GpuMove("GPU-0", "GPU-8"), GpuMove("GPU-1", "GPU-9"))
    await gpu.done("GPU_RESTORE", "r1", devices=devices)
    assert states(gpu) == [S.LOCKED] * 2
    assert [gpu.cuda.held[pid].device for pid in (ROOT, RANK)] == ["GPU-8", "GPU-9"]
    assert gpu.page.hold != 0, "ranks stay parked while the driver works in them"
    await gpu.done("GPU_UNLOCK", "r1")
    assert gpu.page.hold != 0
    await gpu.done("RELEASE", "r1")
    assert states(gpu) == [S.RUNNING] * 2
    assert gpu.worker.report().gpu


async def test_a_map_that_misses_a_device_fails_the_restore(gpu: Rig) -> None:
    await restored(gpu)
    failed = await gpu.order("GPU_RESTORE", "r1", devices=(GpuMove("GPU-0", "GPU-8"),))
    assert "INVALID_VALUE" in failed.failure.what
    await gpu.done("UNDO", "r1", reason="x", kill=True)
    assert gpu.worker.state == ""


async def test_other_processes_than_those_of_the_images_are_named(gpu: Rig) -> None:
    await restored(gpu)
    del gpu.cuda.held[RANK]
    failed = await gpu.order("GPU_RESTORE", "r1")
    assert f"[{ROOT}] have GPU state; those of the images are [{ROOT}, {RANK}]" in (
        failed.failure.what
    )


# -- time ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("phase", "call"),
    [("GPU_LOCK", "lock"), ("GPU_SAVE", "checkpoint"), ("GPU_RESTORE", "restore")],
)
async def test_nothing_is_begun_that_there_is_no_time_for(gpu: Rig, phase: str, call: str) -> None:
    detail: dict[str, Any] = {"cut": "CUT_STEP"} if phase == "GPU_LOCK" else {}
    action = "a1"
    if phase == "GPU_RESTORE":
        await restored(gpu)
        action = "r1"
    else:
        await gpu.to("PARK")
        if phase == "GPU_SAVE":
            await gpu.done("GPU_LOCK", cut="CUT_STEP")
    failed = (await gpu.order(phase, action, deadline_s=0.9, **detail)).failure
    assert (failed.kind, failed.definite) == ("DeadlinePassed", False)
    assert call not in [done for done, _ in gpu.cuda.done]
