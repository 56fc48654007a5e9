"""GPU processes leave their devices before they are killed, where the driver wants that."""

from __future__ import annotations

import asyncio

import pytest

from tests.unit.agent.fakes import RANK, ROOT
from tests.unit.agent.rig import Rig
from worker_shim.agent import worker as worker_module
from worker_shim.cuda.fake import Held
from worker_shim.cuda.port import CudaState

S = CudaState
OFF = ["lock", "checkpoint"]


@pytest.fixture
async def gpu(rig: Rig) -> Rig:
    """Root and rank of the worker use a device each, which they must leave before they end."""
    rig.cuda.held = {ROOT: Held("GPU-0"), RANK: Held("GPU-1")}
    object.__setattr__(rig.drivers, "save_before_kill", lambda: True)
    await rig.agent.report()
    return rig


def off(*pids: int) -> list[tuple[str, int]]:
    return [(call, pid) for pid in pids for call in OFF]


@pytest.mark.parametrize("hangs", [True, False])
async def test_only_where_it_is_needed(gpu: Rig, hangs: bool) -> None:
    object.__setattr__(gpu.drivers, "save_before_kill", lambda: hangs)
    await gpu.worker.kill(deadline_s=5)
    assert gpu.cuda.done == (off(ROOT, RANK) if hangs else [])
    assert gpu.process.state == ""


async def test_one_whose_work_does_not_end_does_not_keep_the_others_on(gpu: Rig) -> None:
    gpu.cuda.held[ROOT].working = True
    await gpu.worker.kill(deadline_s=1.0)
    assert gpu.cuda.done == off(RANK)
    assert gpu.process.state == ""


@pytest.mark.parametrize("call", ["lock", "checkpoint", "state"])
async def test_a_driver_that_hangs_does_not_save_a_worker_from_its_end(gpu: Rig, call: str) -> None:
    gpu.cuda.hangs.add(call)
    began = asyncio.get_running_loop().time()
    await gpu.worker.kill(deadline_s=3.0)
    assert gpu.process.state == ""
    assert asyncio.get_running_loop().time() - began < 10
    assert [each for each in gpu.cuda.done if each[0] == "lock"] == (
        [("lock", ROOT), ("lock", RANK)] if call == "checkpoint" else []
    )


async def test_whatever_goes_wrong_they_are_killed(
    gpu: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def broken(*_: object, **__: object) -> None:
        raise OSError(24, "Too many open files")

    for call in ("lock", "state", "processes"):
        monkeypatch.setattr(gpu.cuda, call, broken)
    await gpu.worker.kill(deadline_s=1.0)
    assert gpu.process.state == ""


async def test_it_waits_for_its_turn_on_the_node_but_not_for_ever(gpu: Rig) -> None:
    async with gpu.drivers.device_turn:
        await gpu.worker.kill(deadline_s=0.6)
    assert gpu.cuda.done == []
    assert gpu.process.state == ""


async def test_what_is_saved_stands_still_until_its_end(gpu: Rig) -> None:
    gpu.process.state = "T"
    for held in gpu.cuda.held.values():
        held.state = S.CHECKPOINTED
    await gpu.worker.kill(deadline_s=5)
    assert "go_on" not in gpu.process.calls


async def test_what_outlives_its_root_leaves_its_devices_too(gpu: Rig) -> None:
    gpu.process.orphans = gpu.process.look(ROOT)
    watching = gpu.worker.watching
    assert watching is not None
    gpu.process.exit(1)
    await asyncio.wait_for(watching, 10)
    assert gpu.cuda.done == off(ROOT, RANK)
    assert gpu.process.calls[-1] == "end_left"
    assert gpu.worker.failed


async def test_most_of_the_time_is_for_that(gpu: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    given_s: list[float] = []

    async def note(*_: object, deadline_s: float) -> None:
        given_s.append(deadline_s)

    monkeypatch.setattr(worker_module, "take_off", note)
    await gpu.worker.kill(deadline_s=180)
    assert given_s == [165]
