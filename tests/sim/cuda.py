"""GPUs of a simulated machine: the fake that ships, with time, faults and the truth."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from coordinator.core.errors import DriverError
from coordinator.core.model import Gpu
from tests.sim.cause import has_effect
from worker_shim.cuda.fake import FakeCuda, Held
from worker_shim.cuda.port import CudaState, GpuProcess
from worker_shim.inventory.inventory import GpuInventory, Inventory
from worker_shim.process.port import Tree as Listing

if TYPE_CHECKING:
    from tests.sim.machine import Machine

GPUS = 2
BYTES = 80 << 30
DRIVER, CUDA = "580.65.06", "13.0"
NEEDS_RUNNING = ("checkpoint", "restore")  # a thread of the process does it
HANGING_S_MAX = 8.0


def uuids_of(machine: str) -> list[str]:
    """Its devices."""
    return [f"GPU-{machine}-{number}" for number in range(GPUS)]


def gpus_of(machine: str) -> tuple[Gpu, ...]:
    """Its devices as its facts have them; all machines have the same kind."""
    return tuple(
        Gpu(number, uuid, "Simulated GPU", BYTES, BYTES, f"0000000{number}:00:00.0", "9.0")
        for number, uuid in enumerate(uuids_of(machine))
    )


class SimInventory(GpuInventory):
    """What a machine's GPUs are, which does not change."""

    def __init__(self, machine: str) -> None:
        self._seen = Inventory(gpus=gpus_of(machine), driver=DRIVER, cuda_version=CUDA)

    def before(self, moment_s: float) -> Inventory:
        """As always."""
        return self._seen

    async def since(self, moment_s: float, *, wait_s: float) -> Inventory | None:
        """At once."""
        return self._seen


class SimCuda(FakeCuda):
    """Device state of the processes of one shim's life, which end with it."""

    def __init__(self, machine: Machine) -> None:
        super().__init__(engine="library")
        self.machine = machine

    # -- what happens to processes -----------------------------------------------------------------

    def start(self, pids: Iterable[int]) -> None:
        """Ranks get onto the devices here."""
        devices = uuids_of(self.machine.name)
        for local, pid in enumerate(pids):
            self.held[pid] = Held(devices[local])

    def bring_back(self, devices: Mapping[int, str]) -> None:
        """They are back with their device memory in their own."""
        for pid, device in devices.items():
            self.held[pid] = Held(device, CudaState.CHECKPOINTED)

    def devices(self, pids: Iterable[int]) -> dict[int, str]:
        """On which each of them is or was."""
        return {pid: self.held[pid].device for pid in pids if pid in self.held}

    def off(self, pids: Iterable[int]) -> bool:
        """Whether one of them cannot use its device now."""
        return any(
            self.held[pid].state is not CudaState.RUNNING for pid in pids if pid in self.held
        )

    def saved(self, pids: Iterable[int]) -> bool:
        """Whether all device memory is in the processes."""
        held = [self.held[pid] for pid in pids if pid in self.held]
        return all(each.state is CudaState.CHECKPOINTED for each in held)

    # -- the port ----------------------------------------------------------------------------------

    async def processes(self, tree: Listing, *, deadline_s: float) -> tuple[GpuProcess, ...]:
        """Those of the tree."""
        await asyncio.sleep(0)
        return await super().processes(tree, deadline_s=deadline_s)

    async def restore(
        self, process: GpuProcess, devices: Mapping[str, str], *, deadline_s: float
    ) -> None:
        """A device that is not here is none."""
        await super().restore(process, devices, deadline_s=deadline_s)
        device = self.held[process.pid].device
        if device not in uuids_of(self.machine.name):
            self.machine.world.truth.violated(
                2, f"{process.pid} is put on {device}, which {self.machine.name} has not"
            )

    async def _begin(
        self,
        call: str,
        doing: str,
        process: GpuProcess,
        deadline_s: float,
        needs: CudaState | None = None,
    ) -> Held:
        if call != "state":
            await self.machine.act(f"cuda_{call}", deadline_s)
            has_effect(f"cuda_{call}")
        tree = self.machine.tree_of(process.pid)
        if tree is None:
            raise DriverError(f"{doing}: process {process.pid} has ended")
        if call in NEEDS_RUNNING and tree.stopped:
            await asyncio.sleep(min(deadline_s, HANGING_S_MAX))
            raise DriverError(f"{doing}: it stands still", definite=False)
        return await super()._begin(call, doing, process, deadline_s, needs)
