"""The GPU phases undone, from each and whatever the driver does."""

from __future__ import annotations

from typing import Any

import pytest

from coordinator.core.errors import DriverError
from tests.unit.agent.fakes import RANK, ROOT
from tests.unit.agent.gpu_rig import saved, states, with_devices
from tests.unit.agent.rig import Rig
from worker_shim.agent import gpus
from worker_shim.cuda.port import CudaState

S = CudaState
OUT_OF_MEMORY = 2


@pytest.fixture
def gpu(rig: Rig) -> Rig:
    return with_devices(rig)


@pytest.mark.parametrize("last", ["GPU_LOCK", "GPU_SAVE", "DUMP"])
@pytest.mark.parametrize("by", ["order", "timer"])
async def test_undo_from_each_phase(gpu: Rig, last: str, by: str) -> None:
    await gpu.to("PARK")
    for phase in ("GPU_LOCK", "GPU_SAVE", "DUMP"):
        hold_s = 0.2 if (by, phase) == ("timer", last) else 0.0
        detail: dict[str, Any] = {} if phase == "GPU_SAVE" else {"cut": "CUT_STEP"}
        before = len(gpu.sent)
        await gpu.done(phase, hold_s=hold_s, **detail)
        if phase == last:
            break
    if by == "order":
        await gpu.done("UNDO", reason="x")
    else:
        undone = await gpu.answer("UNDO", before)
        assert not undone.HasField("failure")
    assert states(gpu) == [S.RUNNING] * 2
    assert gpu.free()
    calls = gpu.process.calls
    assert last != "DUMP" or calls.index("go_on") > calls.index("stop")


async def test_a_lock_that_fails_half_way_is_undone_for_those_that_are_locked(gpu: Rig) -> None:
    await gpu.to("PARK")
    gpu.cuda.held[RANK].working = True
    late = (await gpu.order("GPU_LOCK", cut="CUT_STEP", deadline_s=2.5)).failure
    assert "NOT_READY" in late.what
    assert states(gpu) == [S.LOCKED, S.RUNNING]
    await gpu.done("UNDO", reason="x")
    assert states(gpu) == [S.RUNNING] * 2
    assert gpu.free()


async def test_a_device_that_cannot_be_put_back_faults_the_worker_and_leaves_it_parked(
    gpu: Rig,
) -> None:
    await saved(gpu)
    gpu.cuda.faults["restore"] = OUT_OF_MEMORY
    failed = (await gpu.order("UNDO", reason="x")).failure
    assert f"{ROOT} is checkpointed, {RANK} is checkpointed" in failed.what
    assert gpu.worker.state == "faulted"
    assert gpu.page.hold != 0


async def test_one_that_is_lost_does_not_keep_the_others_from_their_devices(gpu: Rig) -> None:
    await saved(gpu)
    gpu.cuda.held[ROOT].state = S.FAILED
    failed = (await gpu.order("UNDO", reason="x")).failure
    assert f"{ROOT} is failed" in failed.what
    assert states(gpu) == [S.FAILED, S.RUNNING]


async def test_an_undo_that_hangs_is_bounded_and_tried_again(
    gpu: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    await saved(gpu)
    monkeypatch.setattr(gpus, "LEAST_S", 0.1)
    gpu.cuda.hangs.add("restore")
    failed = (await gpu.order("UNDO", reason="x", deadline_s=0.6)).failure
    assert not failed.definite
    gpu.cuda.hangs.clear()
    await gpu.done("UNDO", reason="x", epoch=2)
    assert states(gpu) == [S.RUNNING] * 2
    assert gpu.free()


async def test_one_that_hangs_leaves_time_for_the_others(
    gpu: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    await saved(gpu)
    monkeypatch.setattr(gpus, "LEAST_S", 0.1)
    restore, given_s = gpu.cuda.restore, []

    async def of_root_hangs(process: Any, devices: Any, *, deadline_s: float) -> None:
        given_s.append(deadline_s)
        if process.pid == ROOT:
            raise DriverError("no answer", definite=False)  # it need not take its share for that
        await restore(process, devices, deadline_s=deadline_s)

    gpu.cuda.restore = of_root_hangs  # type: ignore[method-assign]
    failed = (await gpu.order("UNDO", reason="x", deadline_s=10.0)).failure
    assert f"{ROOT} is checkpointed" in failed.what
    assert states(gpu) == [S.CHECKPOINTED, S.RUNNING]
    assert given_s[0] <= 5.0, "half of it, at most"
    assert given_s[1] >= 5.0, "what the first has left too"


async def test_a_driver_that_does_not_answer_keeps_nobody_frozen(
    gpu: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    await saved(gpu)
    await gpu.done("DUMP", cut="CUT_STEP")
    monkeypatch.setattr(gpus, "STATE_S", 0.1)
    state, seen = gpu.cuda.state, []

    async def note(process: Any, *, deadline_s: float) -> CudaState:
        seen.append((gpu.process.state, dict(gpu.network.locks)))
        return await state(process, deadline_s=deadline_s)

    gpu.cuda.state = note  # type: ignore[method-assign]
    gpu.cuda.hangs.add("state")
    failed = await gpu.order("UNDO", reason="x", deadline_s=60)
    assert "is not known to be on them" in failed.failure.what
    assert failed.took_ms < 5000, "each is asked for a moment only"
    assert set(map(str, seen)) == {str(("S", {}))}, "the driver needs it to run"
    assert gpu.page.hold != 0, "a rank without its device stays parked"
    gpu.cuda.hangs.clear()
    await gpu.done("UNDO", reason="x", epoch=2)
    assert states(gpu) == [S.RUNNING] * 2
    assert gpu.free()
