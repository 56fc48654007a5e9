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
