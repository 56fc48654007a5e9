"""A node that is being emptied, as etcd keeps it.

`records.proto` has a message of the same name and fields for each dataclass.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class DrainState(StrEnum):
    """Where the drain of a node stands."""

    DRAINING = "DRAINING"  # its jobs are moved away, and it takes no others
    DRAINED = "DRAINED"  # it is empty, and takes no workers
    FAILED = "FAILED"  # a job could not be moved; the node takes workers as before
    UNDRAINING = "UNDRAINING"  # called off; what was stopped is put back first
    UNDRAINED = "UNDRAINED"  # called off; never kept


class DrainStep(StrEnum):
    """Where one job of a drain stands."""

    WAITING = "WAITING"  # to be stopped: something else has it, or it is not whole
    STOPPING = "STOPPING"  # a checkpoint that stops it is asked for, or runs
    MOVING = "MOVING"  # it is stopped, its restore on other nodes is asked for, or runs
    RETURNING = "RETURNING"  # that failed: it is put back wherever it can, the node included
    MOVED = "MOVED"  # nothing of it is on the node
    STAYED = "STAYED"  # it could not be moved, and runs
    STRANDED = "STRANDED"  # it is stopped, and could not be put back


@dataclass(frozen=True)
class DrainedJob:
    """One job that had workers on the node."""

    job: str
    step: DrainStep = DrainStep.WAITING
    snapshot: str = ""  # that it was stopped with
    why: str = ""  # what last went wrong
    tries: int = 0  # of the present step that have failed


@dataclass(frozen=True)
class DrainRecord:
    """One drain, under all leaders."""

    node: str
    state: DrainState = DrainState.DRAINING
    why: str = ""  # the asker's words
    reason: str = ""  # how it stands, one sentence
    requested_unix_s: float = 0.0
    deadline_unix_s: float = 0.0  # for the last checkpoint to be whole
    jobs: tuple[DrainedJob, ...] = ()
    session: str = ""  # of the shim whose notice began it: once another speaks, it is called off


_CAUSE = "drain of "


def cause_of(node: str) -> str:
    """What attempts and restores of a drain have as their cause."""
    return f"{_CAUSE}{node}"


def of_drain(cause: str) -> bool:
    """Whether an attempt or restore is a drain's: what it stops is restored at once."""
    return cause.startswith(_CAUSE)
