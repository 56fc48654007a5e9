"""What a restore that failed says of its snapshot, and of the node where it failed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from coordinator.core.model import Failure, Phase

OF_THE_SNAPSHOT = frozenset({"Damaged", "ObjectMissing"})
OF_THE_CONTROL_PLANE = frozenset({"StoreError", "Overtaken", "LinkError", "NoLeader", "Fenced"})


@dataclass(frozen=True)
class Blame:
    """Whose fault it may be; nobody's: of an operator, the control plane, or the image store."""

    snapshot: bool = True
    node: str = ""  # that may be at fault too, or alone
    lost: bool = False  # the node is out of reach


def blame(failure: Failure | None, attached: Callable[[str], bool]) -> Blame:
    """Judge a failure; `attached`: whether a node is in reach.

    What names neither node nor worker was no node's word: an abort, a leader that ended, the store
    of records.
    """
    if failure is None or failure.kind in OF_THE_SNAPSHOT:
        return Blame()
    if failure.kind in OF_THE_CONTROL_PLANE or (not failure.node and failure.worker < 0):
        return Blame(snapshot=False)
    if not attached(failure.node):
        return Blame(snapshot=False, lost=True)
    if failure.phase == Phase.CLEAR:  # the old run would not go: nothing was brought back yet
        return Blame(snapshot=False, node=failure.node)
    slow = (failure.phase, failure.kind) == (Phase.FETCH, "DeadlinePassed")
    return Blame(snapshot=not slow and failure.kind != "StoreAway", node=failure.node)
