"""Port of the CUDA driver: which processes of a tree hold GPU state.

Locking and saving them is not part of this version: the preflight refuses a worker that has any.
"""

from __future__ import annotations

from typing import Protocol

from worker_shim.process.port import Tree


class CudaDriver(Protocol):
    """What the agent asks about GPUs."""

    def processes(self, tree: Tree) -> tuple[int, ...]:
        """Pids of the tree that have an NVIDIA device open."""
