"""Who has an NVIDIA device open, by /proc alone: no driver is asked."""

from __future__ import annotations

import os

from worker_shim.process.port import Tree

PREFIX_VARIABLE = "ALLSTOP_NVIDIA_DEVICES"  # where a container has them under another name
DEVICE_PREFIX = os.environ.get(PREFIX_VARIABLE, "/dev/nvidia")


def holders(tree: Tree, prefix: str = DEVICE_PREFIX) -> tuple[int, ...]:
    """Pids with an open device; a process that ends meanwhile has none."""
    return tuple(pid for pid in tree.pids if has_device(pid, prefix))


def has_device(pid: int, prefix: str = DEVICE_PREFIX) -> bool:
    """Whether a process has one open."""
    try:
        descriptors = os.listdir(f"/proc/{pid}/fd")
    except OSError:
        return False
    return any(_target(pid, descriptor).startswith(prefix) for descriptor in descriptors)


def _target(pid: int, descriptor: str) -> str:
    try:
        return os.readlink(f"/proc/{pid}/fd/{descriptor}")
    except OSError:
        return ""
