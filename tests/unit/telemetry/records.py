"""An attempt that has ended, as tests of what is told of it want it."""

from __future__ import annotations

from dataclasses import replace

from coordinator.core.model import AttemptRecord, AttemptState, Cut, Failure, Phase, PhaseTiming
from coordinator.core.timelines import Arrival, Lap, Timeline, WorkerTiming

ACTION = "llm-20261129-155236-b8405e"

COMMITTED = AttemptRecord(
    attempt=ACTION,
    job="llm",
    state=AttemptState.COMMITTED,
    epoch=7,
    incarnation=1,
    cut=Cut.STEP,
    stop=False,
    target=48,
    deadline_s=600,
    requested_unix_s=1_000.0,
    reason="committed",
    timings=(
        PhaseTiming(Phase.HOLD, 5, 200, "worker 0 on n0"),
        PhaseTiming(Phase.PARK, 205, 70, "worker 1 on n1"),
        PhaseTiming(Phase.DUMP, 275, 1600, "worker 1 on n1"),
        PhaseTiming(Phase.RESUME, 1875, 30, "worker 0 on n0"),
        PhaseTiming(Phase.PERSIST, 1875, 8000, "worker 0 on n0"),
        PhaseTiming(Phase.COMMIT, 9875, 30),
    ),
    pause_ms=1690,
    nodes=("n0", "n1"),
    world_size=4,
)
ABORTED = replace(
    COMMITTED,
    state=AttemptState.ABORTED,
    reason="given up in PARK: rank 2 is late",
    failure=Failure("DeadlinePassed", "rank 2 is late", job="llm", phase="PARK"),
    timings=(
        *COMMITTED.timings[:1],
        PhaseTiming(Phase.PARK, 205, 4000, ""),
        PhaseTiming(Phase.UNDO, 4205, 20, "worker 0 on n0"),
    ),
)
TIMELINE = Timeline(
    "llm",
    ACTION,
    (
        WorkerTiming(Phase.PARK, 1, "n1", 66, (Lap("wait", 1),), (Arrival(2, 40), Arrival(3, 66))),
        WorkerTiming(Phase.PARK, 0, "n0", 30, (), (Arrival(0, 12), Arrival(1, 30))),
        WorkerTiming(Phase.DUMP, 1, "n1", 1590, (Lap("stop", 20), Lap("criu", 1500))),
        WorkerTiming(Phase.DUMP, 0, "n0", 700, (Lap("stop", 10), Lap("criu", 650))),
    ),
)
