"""A worker with devices, up to where it is saved."""

from __future__ import annotations

from tests.unit.agent.fakes import RANK, ROOT
from tests.unit.agent.rig import Rig
from worker_shim.cuda.fake import Held
from worker_shim.cuda.port import CudaState

TO_SAVED = ("GPU_LOCK", "GPU_SAVE")


def with_devices(rig: Rig) -> Rig:
    """Root and rank of the worker use a device each."""
    rig.cuda.held = {ROOT: Held("GPU-0"), RANK: Held("GPU-1")}
    return rig


def states(rig: Rig) -> list[CudaState]:
    """How both stand."""
    return [rig.cuda.held[pid].state for pid in (ROOT, RANK)]


async def saved(rig: Rig, action: str = "a1") -> None:
    """Their device memory is in them."""
    await rig.to("PARK", action)
    for phase in TO_SAVED:
        await rig.done(phase, action, **({"cut": "CUT_STEP"} if phase == "GPU_LOCK" else {}))
