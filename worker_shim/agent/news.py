"""What of its workers a shim tells at once, and what may wait."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from coordinator.core.model import WorkerState

WORKERS_PER_S = 256  # of one job, that may tell their steps in one second
STEPS_S_MAX = 5.0
AT_REST = frozenset({"held", "stopped"})  # for a checkpoint


def is_news(states: Sequence[WorkerState], told: Sequence[WorkerState], silent_s: float) -> bool:
    """Whether the workers are worth a report, so long after something was told last.

    Of one that no run has taken in yet is told again and again: it waits for an answer.
    """
    if states == told:
        return any(not state.incarnation for state in states)
    if [_lasting(each) for each in states] != [_lasting(each) for each in told]:
        return True
    many = max(state.workers for state in states)
    return silent_s >= min(STEPS_S_MAX, many / WORKERS_PER_S)


def _lasting(state: WorkerState) -> WorkerState:
    """A worker's state without its steps, and without what results of orders tell anyway."""
    ranks = tuple(replace(rank, boundary=0, parked=False) for rank in state.ranks)
    if state.state in AT_REST:
        return replace(state, state="running", action="", ranks=ranks)
    return replace(state, ranks=ranks)
