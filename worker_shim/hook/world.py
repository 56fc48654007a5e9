"""Which rank of the job a process is, by its environment.

Launchers say it by RANK and WORLD_SIZE. Where several replica groups are one job (torchft), each
has a RANK 0; its component for TorchX and its examples then tell them apart by REPLICA_GROUP_ID and
NUM_REPLICA_GROUPS, and a rank's number in the job is torchft's own global rank. Standard library
only; this module runs inside the user's ranks.
"""

from __future__ import annotations

from collections.abc import Mapping

GROUP_VARIABLE = "REPLICA_GROUP_ID"
GROUPS_VARIABLE = "NUM_REPLICA_GROUPS"


def job_rank(environ: Mapping[str, str]) -> int:
    """The rank's number in the job; -1 when the environment names none."""
    rank, group = _number(environ, "RANK", -1), _number(environ, GROUP_VARIABLE, -1)
    if rank < 0 or group < 0:
        return rank
    return group * _number(environ, "WORLD_SIZE", 1) + rank


def job_world_size(environ: Mapping[str, str]) -> int:
    """How many ranks the job has; 0 when a replica group does not say how many groups there are."""
    size = _number(environ, "WORLD_SIZE", 1)
    return size * _number(environ, GROUPS_VARIABLE, 0) if in_group(environ) else size


def in_group(environ: Mapping[str, str]) -> bool:
    """Whether ranks beside this one may have its local rank, too."""
    return _number(environ, GROUP_VARIABLE, -1) >= 0


def _number(environ: Mapping[str, str], variable: str, default: int) -> int:
    try:
        return max(0, int(environ[variable]))
    except (KeyError, ValueError):
        return default
