"""What operators are shown of the core: plain values with the fields of operator.proto."""

from __future__ import annotations

from dataclasses import dataclass

from coordinator.core.model import JobRecord, NodeFacts, WorkerState


@dataclass(frozen=True)
class JobView:
    """One job as the coordinator sees it at this moment."""

    job: JobRecord
    workers: tuple[WorkerState, ...]  # of the present incarnation, by number
    nodes: tuple[str, ...]  # where these workers are, in the same order
    state: str  # running, checkpointing, restoring, incomplete, exited, unknown
    action: str = ""  # the attempt or restore that has the job
    step: int = 0  # highest boundary seen
    latest_unix_s: float = 0.0  # when the newest snapshot was committed; 0: by an earlier leader


@dataclass(frozen=True)
class NodeView:
    """One node as the coordinator sees it at this moment."""

    facts: NodeFacts
    state: str  # attached, lost, left
    workers: tuple[WorkerState, ...]
    reason: str = ""  # why it is lost or left
