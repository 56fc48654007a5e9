"""CudaDriver for tests: processes by pid, with the driver's states and refusals, in memory."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field

from coordinator.core.errors import DriverError
from worker_shim.cuda.port import CudaState, GpuProcess
from worker_shim.cuda.results import no_map, refusal
from worker_shim.process.port import Tree

ILLEGAL_STATE, INVALID_VALUE, NOT_INITIALIZED, NOT_READY = 401, 1, 3, 600


@dataclass
class Held:
    """One process that uses a device."""

    device: str = "GPU-0"
    state: CudaState = CudaState.RUNNING
    working: bool = False  # a lock waits for the end of that
    alive: bool = True
    among: frozenset[str] = frozenset()  # devices of the node where it was saved; empty: not known


@dataclass
class FakeCuda:
    """Set `pids` to make these count as GPU processes; `held` is how each of them stands."""

    pids: tuple[int, ...] = ()
    held: dict[int, Held] = field(default_factory=dict)
    faults: dict[str, int] = field(default_factory=dict)  # result of a call by its name
    hangs: set[str] = field(default_factory=set)  # calls that never end
    idle: frozenset[str] = frozenset()  # devices of the node that nobody uses
    done: list[tuple[str, int]] = field(default_factory=list)  # calls that did something, in order
    engine: str = "fake"
    moves: bool = True
    trouble: str = ""

    async def open(self, *, deadline_s: float) -> None:
        """It is there."""

    def holders(self, tree: Tree) -> tuple[int, ...]:
        """Those of the tree that are not CHECKPOINTED."""
        return tuple(
            pid
            for pid in tree.pids
            if (pid in self.pids or pid in self.held)
            and self._of(pid).state is not CudaState.CHECKPOINTED
        )

    async def processes(self, tree: Tree, *, deadline_s: float) -> tuple[GpuProcess, ...]:
        """Those of the tree, in its order."""
        return tuple(
            GpuProcess(each.pid, each.start_ticks)
            for each in tree.processes
            if each.pid in self.pids or each.pid in self.held
        )

    async def state(self, process: GpuProcess, *, deadline_s: float) -> CudaState:
        """As noted."""
        doing = f"asking for the state of process {process.pid}"
        return (await self._begin("state", doing, process, deadline_s)).state

    async def lock(self, process: GpuProcess, *, timeout_s: float, deadline_s: float) -> None:
        """RUNNING to LOCKED once it does not work any more."""
        doing = f"the lock of process {process.pid}"
        held = await self._begin("lock", doing, process, deadline_s, CudaState.RUNNING)
        until = asyncio.get_running_loop().time() + timeout_s
        while held.working:
            if asyncio.get_running_loop().time() >= until:
                raise refusal(doing, NOT_READY, "", changed=False)
            await asyncio.sleep(0)
        self._becomes("lock", process, CudaState.LOCKED)

    async def checkpoint(self, process: GpuProcess, *, deadline_s: float) -> None:
        """LOCKED to CHECKPOINTED."""
        doing = f"the checkpoint of process {process.pid}"
        held = await self._begin("checkpoint", doing, process, deadline_s, CudaState.LOCKED)
        held.among = self.idle | {each.device for each in self.held.values()}
        self._becomes("checkpoint", process, CudaState.CHECKPOINTED)

    async def restore(
        self, process: GpuProcess, devices: Mapping[str, str], *, deadline_s: float
    ) -> None:
        """CHECKPOINTED to LOCKED, on the device that the map names."""
        doing = f"the restore of process {process.pid}"
        if devices and not self.moves:
            raise no_map(doing)
        held = await self._begin("restore", doing, process, deadline_s, CudaState.CHECKPOINTED)
        if devices and not (held.among | {held.device}) <= devices.keys():
            raise refusal(doing, INVALID_VALUE, "", changed=True)
        held.device = devices.get(held.device, held.device)
        self._becomes("restore", process, CudaState.LOCKED)

    async def unlock(self, process: GpuProcess, *, deadline_s: float) -> None:
        """LOCKED to RUNNING."""
        doing = f"the unlock of process {process.pid}"
        await self._begin("unlock", doing, process, deadline_s, CudaState.LOCKED)
        self._becomes("unlock", process, CudaState.RUNNING)

    async def close(self) -> None:
        """Nothing runs."""

    def _of(self, pid: int) -> Held:
        return self.held.setdefault(pid, Held())

    def _becomes(self, call: str, process: GpuProcess, state: CudaState) -> None:
        self._of(process.pid).state = state
        self.done.append((call, process.pid))

    async def _begin(
        self,
        call: str,
        doing: str,
        process: GpuProcess,
        deadline_s: float,
        needs: CudaState | None = None,
    ) -> Held:
        changes = call in ("checkpoint", "restore")
        if process.pid not in self.pids and process.pid not in self.held:
            raise refusal(doing, NOT_INITIALIZED, "", changed=changes)
        held = self._of(process.pid)
        if not held.alive:
            raise DriverError(f"{doing}: process {process.pid} has ended")
        if call in self.hangs:
            await asyncio.sleep(deadline_s)
            raise DriverError(f"{doing}: no answer in time", definite=False)
        code = self.faults.get(call, 0) or (
            ILLEGAL_STATE if needs is not None and held.state is not needs else 0
        )
        if code:
            raise refusal(doing, code, "", changed=changes)
        return held
