"""What goes wrong with a fake shim, and small words of its trade."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from allstop.v1 import records_pb2, shim_pb2

from coordinator.core.model import Finding, Phase


@dataclass
class Behaviour:
    """What goes wrong, per phase; nothing by default."""

    late_s: dict[Phase, float] = field(default_factory=dict)
    fail: dict[Phase, str] = field(default_factory=dict)  # phase -> CRIU's words
    mute: set[Phase] = field(default_factory=set)  # never answers
    vanish: set[Phase] = field(default_factory=set)  # breaks the stream instead of answering
    findings: tuple[Finding, ...] = ()
    boundary: int = 100
    stuck_ranks: tuple[int, ...] = ()  # park one step short of the target
    progress: tuple[tuple[int, int], ...] = ()  # told before PERSIST is answered


def phase_of(number: Any) -> Phase:
    """The phase of an order."""
    return Phase(records_pb2.Phase.Name(number).removeprefix("PHASE_"))


def progress_of(order: shim_pb2.Order, done: int, total: int) -> shim_pb2.Progress:
    """How far a long order is."""
    return shim_pb2.Progress(
        job=order.job,
        worker=order.worker,
        action=order.action,
        phase=order.phase,
        done_bytes=done,
        total_bytes=total,
    )
