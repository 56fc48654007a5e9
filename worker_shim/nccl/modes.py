"""What becomes of NCCL's communicators while a worker is saved: a mode per job.

The mode is in the worker's environment from its launch, so it is in its images too.
"""

from __future__ import annotations

from worker_shim.hook.communicators import MODE_VARIABLE, REBUILD
from worker_shim.process.proc import read_environment

KEEP = "keep"  # they stay, over sockets alone
NONE = "none"  # there are none: gloo, MPI over TCP
AUTO = "auto"  # chosen at launch
MODES = (AUTO, REBUILD, KEEP, NONE)

SHIM_LIBRARY = "libnccl-checkpoint-shim.so"


def mode_of(root_pid: int) -> str:
    """The mode that a worker was launched with; empty for one without, or that is gone."""
    return read_environment(root_pid).get(MODE_VARIABLE, "") if root_pid else ""
