"""Workers of one node go through the GPU phases by their numbers."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import Any

import pytest

from tests.unit.agent.gpu_rig import with_devices
from tests.unit.agent.rig import Rig
from worker_shim.agent.worker import Worker


@dataclass
class Beside:
    """Another worker of the job on the node."""

    worker: int
    action: str = "a1"
    alive: bool = True
    room_bytes: int = 0
    ended: set[str] = field(default_factory=set)


@pytest.fixture
def gpu(rig: Rig) -> Rig:
    with_devices(rig)
    rig.worker.worker = 1  # its orders find it by its lane
    return rig


def stand(rig: Rig, *others: Beside) -> None:
    rig.worker.beside = lambda: others  # type: ignore[assignment]


CALLS = {"GPU_LOCK": "lock", "GPU_SAVE": "checkpoint", "RESUME": "restore"}


@pytest.mark.parametrize("phase", CALLS)
async def test_the_lower_number_goes_first(gpu: Rig, phase: str) -> None:
    await gpu.to("PARK")
    for before in CALLS:
        detail: dict[str, Any] = {"cut": "CUT_STEP"} if before == "GPU_LOCK" else {}
        if before != phase:
            await gpu.done(before, **detail)
            continue
        lower = Beside(0)
        stand(gpu, lower)
        since = gpu.give(phase, **detail)
        waiting = asyncio.create_task(gpu.answer(phase, since))
        await asyncio.wait({waiting}, timeout=0.1)
        assert CALLS[phase] not in [call for call, _ in gpu.cuda.done]
        lower.ended.add(f"{phase} of a1")
        assert not (await waiting).HasField("failure")
        assert CALLS[phase] in [call for call, _ in gpu.cuda.done]
        return


@pytest.mark.parametrize(
    "other",
    [
        Beside(2),
        Beside(0, action="a2"),
        Beside(0, alive=False),
        Beside(0, ended={"GPU_LOCK of a1"}),
    ],
    ids=["higher", "of another action", "ended", "done"],
)
async def test_nobody_else_is_waited_for(gpu: Rig, other: Beside) -> None:
    await gpu.to("PARK")
    stand(gpu, other)
    await gpu.done("GPU_LOCK", cut="CUT_STEP", deadline_s=5)


async def test_one_that_never_ends_is_not_waited_for_longer_than_there_is_time(gpu: Rig) -> None:
    await gpu.to("PARK")
    stand(gpu, Beside(0))
    failed = (await gpu.order("GPU_LOCK", cut="CUT_STEP", deadline_s=0.3)).failure
    assert failed.kind == "DeadlinePassed"


async def test_an_order_that_failed_has_ended_too(rig: Rig) -> None:
    worker: Worker = rig.worker
    assert (await rig.order("GPU_SAVE")).HasField("failure")
    assert "GPU_SAVE of a1" in worker.ended
