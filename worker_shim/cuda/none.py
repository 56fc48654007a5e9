"""CudaDriver for nodes without a GPU: it looks, finds none, and refuses to guess."""

from __future__ import annotations

import os

from worker_shim.process.port import Tree

DEVICE_PREFIX = "/dev/nvidia"


class NoCuda:
    """Finds GPU processes by their open devices; can do nothing else with them."""

    def processes(self, tree: Tree) -> tuple[int, ...]:
        """Pids with an open `/dev/nvidia*`; a process that ends meanwhile has none."""
        return tuple(pid for pid in tree.pids if _has_device(pid))


def _has_device(pid: int) -> bool:
    try:
        descriptors = os.listdir(f"/proc/{pid}/fd")
    except OSError:
        return False
    return any(_target(pid, descriptor).startswith(DEVICE_PREFIX) for descriptor in descriptors)


def _target(pid: int, descriptor: str) -> str:
    try:
        return os.readlink(f"/proc/{pid}/fd/{descriptor}")
    except OSError:
        return ""
