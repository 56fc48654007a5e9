"""What becomes of NCCL's communicators while a worker is saved: a mode per job, and what it needs.

The mode is in the worker's environment from its launch, so it is in its images too.
"""

from __future__ import annotations

from pathlib import Path

from coordinator.core.versions import version_of
from worker_shim.cuda.devices import KERNEL_DRIVER, kernel_driver
from worker_shim.hook.communicators import MODE_VARIABLE, REBUILD
from worker_shim.process.proc import read_environment

KEEP = "keep"  # they stay, over sockets alone
NONE = "none"  # there are none: gloo, MPI over TCP
AUTO = "auto"  # chosen at launch
MODES = (AUTO, REBUILD, KEEP, NONE)

SHIM_LIBRARY = "libnccl-checkpoint-shim.so"
KEEP_DRIVER = (610,)  # the first with which communicators were seen to outlive a checkpoint


def mode_of(root_pid: int) -> str:
    """The mode that a worker was launched with; empty for one without, or that is gone."""
    return read_environment(root_pid).get(MODE_VARIABLE, "") if root_pid else ""


def driver_version(path: Path = KERNEL_DRIVER) -> tuple[int, ...]:
    """Of the NVIDIA kernel module; empty when there is none."""
    return version_of(kernel_driver(path))


def why_not_keep(driver: tuple[int, ...]) -> str:
    """Why communicators cannot be kept with this driver; empty where it is known to work."""
    if driver >= KEEP_DRIVER:
        return ""
    have = ".".join(map(str, driver)) or "unknown"
    return (
        f"the NVIDIA driver is {have}, and before {KEEP_DRIVER[0]} even communicators over sockets "
        "were seen to hang a checkpoint"
    )
