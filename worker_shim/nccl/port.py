"""What the shim knows of a rank's communicators."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class RankCommunicators:
    """As the rank's hook has written it into its slot of the control page."""

    rank: int
    pid: int
    state: int  # one of hook.page's COMMUNICATORS_*
    result: int  # ncclResult_t of the last call of the checkpoint shim


@dataclass
class Rebuild:
    """That ranks of a worker were let go, and build their communicators anew."""

    action: str  # of the attempt or restore that destroyed them
    late_at: float  # on the monotonic clock: a worker that still lacks some then is faulted
    late: bool = False  # it is
