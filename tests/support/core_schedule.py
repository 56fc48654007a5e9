"""A job that is looked at once a second, and what its checkpoints and restores have told."""

from __future__ import annotations

from dataclasses import replace

from coordinator.core.job_policy import JobPolicy, When
from coordinator.core.model import (
    AttemptRecord,
    AttemptState,
    Cut,
    Phase,
    PhaseTiming,
    Plan,
    RestoreRecord,
    RestoreState,
)
from coordinator.core.schedule import Schedule, Sight

HOUR_S = 3600.0
EVERY = JobPolicy("llm", When.SECONDS, interval_s=100.0)
STEPS = JobPolicy("llm", When.STEPS, interval_steps=50)
AUTO = JobPolicy("llm", When.AUTO, mtbf_s=HOUR_S, least_s=30.0)
SIGHT = Sight("llm", ready=True, busy=False, step=10, nodes=("n0", "n1"))


def record(
    state: AttemptState = AttemptState.COMMITTED, *, pause_ms: int = 2000, step: int = 10
) -> AttemptRecord:
    """An attempt of 8 s, of which 6 came after the cut."""
    timings = (PhaseTiming(Phase.DUMP, 1000, 1000), PhaseTiming(Phase.PERSIST, 2000, 6000))
    return AttemptRecord(
        attempt="a1", job="llm", state=state, epoch=1, incarnation=1, cut=Cut.STEP, stop=False,
        target=step, deadline_s=60.0, requested_unix_s=1.0, reason="", timings=timings,
        pause_ms=pause_ms,
    )  # fmt: skip


RESTORED = RestoreRecord(
    restore="r1", job="llm", snapshot="a1", state=RestoreState.RUNNING, epoch=1, incarnation=2,
    plan=Plan("llm", "a1", (), ()), deadline_s=60.0, requested_unix_s=1.0, reason="",
    timings=(PhaseTiming(Phase.RESTORE, 0, 3000), PhaseTiming(Phase.RELEASE, 3000, 1000)),
)  # fmt: skip


def looking(
    schedule: Schedule, start: float, seconds: float, sight: Sight = SIGHT, speed: float = 0.0
) -> float:
    """Look once a second; returns when something was due first, or infinity."""
    at = start
    while at <= start + seconds:
        step = sight.step + int(speed * (at - start))
        if schedule.look(replace(sight, step=step), at):
            return at
        at += 1.0
    return float("inf")
