"""CudaDriver for nodes without a GPU: it looks for open devices, and can do nothing with them."""

from __future__ import annotations

from collections.abc import Mapping

from coordinator.core.errors import DriverError
from worker_shim.cuda.devices import holders
from worker_shim.cuda.port import CudaState, GpuProcess
from worker_shim.process.port import Tree


class NoCuda:
    """Says why whatever has a device open cannot be saved here."""

    engine = ""
    moves = False

    def __init__(self, why: str = "this node has no CUDA driver") -> None:
        """`why` goes into every refusal."""
        self.trouble = why

    async def open(self, *, deadline_s: float) -> None:
        """Refused."""
        raise self._refusal("GPU state cannot be saved")

    def holders(self, tree: Tree) -> tuple[int, ...]:
        """Pids with an open NVIDIA device."""
        return holders(tree)

    async def processes(self, tree: Tree, *, deadline_s: float) -> tuple[GpuProcess, ...]:
        """None, or DriverError where one has a device open all the same."""
        if pids := holders(tree):
            raise self._refusal(f"processes {list(pids)} have a GPU open")
        return ()

    async def state(self, process: GpuProcess, *, deadline_s: float) -> CudaState:
        """Without a driver there is no state."""
        return CudaState.NONE

    async def lock(self, process: GpuProcess, *, timeout_s: float, deadline_s: float) -> None:
        """Refused."""
        raise self._refusal(f"process {process.pid} cannot be locked")

    async def checkpoint(self, process: GpuProcess, *, deadline_s: float) -> None:
        """Refused."""
        raise self._refusal(f"process {process.pid} cannot be saved")

    async def restore(
        self, process: GpuProcess, devices: Mapping[str, str], *, deadline_s: float
    ) -> None:
        """Refused."""
        raise self._refusal(f"process {process.pid} cannot be restored")

    async def unlock(self, process: GpuProcess, *, deadline_s: float) -> None:
        """Refused."""
        raise self._refusal(f"process {process.pid} cannot be unlocked")

    async def close(self) -> None:
        """Nothing runs."""

    def _refusal(self, what: str) -> DriverError:
        return DriverError(
            f"{what}: {self.trouble}", advice="install the NVIDIA driver, 570 or newer"
        )
