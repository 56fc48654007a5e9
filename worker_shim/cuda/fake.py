"""CudaDriver for tests: says what it was told to say."""

from __future__ import annotations

from dataclasses import dataclass

from worker_shim.process.port import Tree


@dataclass
class FakeCuda:
    """Set `pids` to make these count as GPU processes."""

    pids: tuple[int, ...] = ()

    def processes(self, tree: Tree) -> tuple[int, ...]:
        """Those of `pids` that are in the tree."""
        return tuple(pid for pid in tree.pids if pid in self.pids)
