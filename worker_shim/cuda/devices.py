"""Who has an NVIDIA device open, by /proc alone: no driver is asked."""

from __future__ import annotations

import os
import re
from pathlib import Path

from worker_shim.process.port import Tree

PREFIX_VARIABLE = "ALLSTOP_NVIDIA_DEVICES"  # where a container has them under another name
DEVICE_PREFIX = os.environ.get(PREFIX_VARIABLE, "/dev/nvidia")

KERNEL_DRIVER = Path("/proc/driver/nvidia/version")
_VERSION = re.compile(r"Kernel Module.*?\s(\d+(?:\.\d+)+)\s")


def kernel_driver(path: Path = KERNEL_DRIVER) -> str:
    """Version of the NVIDIA driver that the kernel has loaded; empty without one."""
    try:
        match = _VERSION.search(path.read_text())
    except OSError:
        return ""
    return match[1] if match else ""


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
