"""Port of the CUDA driver: which processes of a tree hold GPU state, and saving that state.

The driver's states and what leads from one to the next (CUDA driver API, "CUDA checkpointing"):

    RUNNING --lock--> LOCKED --checkpoint--> CHECKPOINTED --restore--> LOCKED --unlock--> RUNNING

Everything here is for one process at a time: the driver promises nothing for two at once on a node,
and NVIDIA's own agent goes through them in one order and back in the same.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

from worker_shim.process.port import Tree


class CudaState(StrEnum):
    """How a process stands with its driver."""

    NONE = "none"  # it never initialised CUDA
    RUNNING = "running"
    LOCKED = "locked"
    CHECKPOINTED = "checkpointed"
    FAILED = "failed"  # for good: only its end helps
    OTHER = "other"  # a state that a newer driver has and this version does not know


@dataclass(frozen=True)
class GpuProcess:
    """A process that has GPU state. The driver knows it by its pid, which another could have."""

    pid: int
    start_ticks: int  # field 22 of /proc/PID/stat


class CudaDriver(Protocol):
    """What the agent needs of GPUs. Every call ends by `deadline_s`.

    All calls raise DriverError: definite where the driver said no and nothing has changed, else
    not, so that the caller looks at `state` before it decides. A process that has ended, or whose
    pid another one has, is named.
    """

    engine: str  # library, program; empty: it can do nothing
    trouble: str  # why it can do nothing

    @property
    def moves(self) -> bool:
        """Whether `restore` takes a map; known once `open` has ended."""

    async def open(self, *, deadline_s: float) -> None:
        """Reach the driver; DriverError says why it cannot be used. Other calls do it by need."""

    def holders(self, tree: Tree) -> tuple[int, ...]:
        """Pids of the tree that have an NVIDIA device open, GPU state or not. Does not block."""

    async def processes(self, tree: Tree, *, deadline_s: float) -> tuple[GpuProcess, ...]:
        """Those with GPU state, in the order in which all phases take them: the tree's."""

    async def state(self, process: GpuProcess, *, deadline_s: float) -> CudaState:
        """How it stands now."""

    async def lock(self, process: GpuProcess, *, timeout_s: float, deadline_s: float) -> None:
        """Let no new work begin and wait for what was submitted, at most `timeout_s` (> 0).

        After a time-out the process is RUNNING, and the error is definite.
        """

    async def checkpoint(self, process: GpuProcess, *, deadline_s: float) -> None:
        """Copy device memory into the process's own memory and close its devices; LOCKED before."""

    async def restore(
        self, process: GpuProcess, devices: Mapping[str, str], *, deadline_s: float
    ) -> None:
        """Put device memory back; LOCKED after it. Waits for ever while the process is stopped.

        `devices`: UUID at the checkpoint to UUID now, of every device; empty when none has changed.
        A map where there is none of `moves` is refused before the driver is asked.
        """

    async def unlock(self, process: GpuProcess, *, deadline_s: float) -> None:
        """Let it work again."""

    async def close(self) -> None:
        """End what this driver has running, also a call; it starts again when it is used again."""
