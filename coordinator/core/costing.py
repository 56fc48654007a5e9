"""What checkpoints and restarts of a job have cost lately, from their records and its steps."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from statistics import median

from coordinator.core.interval import Costs
from coordinator.core.model import (
    AttemptRecord,
    AttemptState,
    Phase,
    RestoreRecord,
    RestoreState,
)

RECENT = 5  # of each that count
RESTART_S = 60.0  # until one was seen
RATE_KEPT = 0.9  # of the usual speed, at each look


@dataclass
class Costing:
    """The last checkpoints and restores of one job."""

    pauses: deque[float] = field(default_factory=lambda: deque(maxlen=RECENT))
    slowed: deque[float] = field(default_factory=lambda: deque(maxlen=RECENT))
    latencies: deque[float] = field(default_factory=lambda: deque(maxlen=RECENT))
    attempts: deque[float] = field(default_factory=lambda: deque(maxlen=RECENT))
    restarts: deque[float] = field(default_factory=lambda: deque(maxlen=RECENT))
    restores: deque[float] = field(default_factory=lambda: deque(maxlen=RECENT))
    spent_s: float = 0.0  # by all checkpoints that were seen, given up ones too
    stored_s: float = 0.0  # from the cut of the last one to its end
    rate: float = 0.0  # steps a second while nothing is done to the job; 0: not known
    _step: int = 0
    _at: float = -1.0
    _began: tuple[int, float] | None = None  # step and time when an attempt began
    _moved_at: float = -1.0  # when the job was last seen at a new step
    _down: tuple[float, int] | None = None  # since when, and the step that it came back at

    @property
    def known(self) -> bool:
        """Whether one checkpoint was seen at all."""
        return bool(self.attempts)

    def stepped(self, step: int, now: float, *, busy: bool) -> None:
        """The job is at this step; `busy`: something is being done to it."""
        self._came_back(step, now)
        if not busy and self._at >= 0 and now > self._at and step > self._step:
            rate = (step - self._step) / (now - self._at)
            self.rate = RATE_KEPT * self.rate + (1 - RATE_KEPT) * rate if self.rate else rate
        if busy and self._began is None:
            self._began = (step, now)
        if step != self._step or self._at < 0 or busy:
            self._step, self._at = step, now

    def _came_back(self, step: int, now: float) -> None:
        """After a failure the first step that is new counts, not the one that it came back at."""
        if self._down is not None:
            since, first = self._down
            if first < 0:
                self._down = since, step
            elif step > first:
                self.restarts.append(now - since)
                self._down = None
        if step != self._step or self._moved_at < 0:
            self._moved_at = now

    def failed(self) -> None:
        """The run has failed: from its last step to the next one is what a restart takes."""
        self._down = (self._moved_at, -1) if self._moved_at >= 0 else None

    def forget_steps(self) -> None:
        """The job stands, or begins anew: what it does next says nothing of its speed."""
        self._at, self._began = -1.0, None

    def attempt_ended(self, record: AttemptRecord, now: float) -> None:
        """One that was not committed tells nothing but what it has cost."""
        began, self._began = self._began, None
        self.spent_s += record.pause_ms / 1000
        if record.state is not AttemptState.COMMITTED or record.stop:
            return
        ends = {t.phase: (t.started_ms + t.took_ms) / 1000 for t in record.timings}
        whole = max(ends.values(), default=0.0)
        self.pauses.append(record.pause_ms / 1000)
        self.attempts.append(whole)
        self.stored_s = max(0.0, whole - ends.get(Phase.DUMP, whole))
        self.latencies.append(self.stored_s)
        if began is not None and self.rate and self._at > began[1]:
            lost = (self._at - began[1]) - (self._step - began[0]) / self.rate
            self.slowed.append(max(0.0, lost))
            self.spent_s += max(0.0, min(lost, whole) - record.pause_ms / 1000)

    def restore_ended(self, record: RestoreRecord) -> None:
        """One that failed tells nothing."""
        if record.state is RestoreState.RUNNING:
            ends = [(t.started_ms + t.took_ms) / 1000 for t in record.timings]
            self.restores.append(max(ends, default=0.0))

    def costs(self) -> Costs:
        """The medians; a restart from step to step where that was seen, else what restores take.

        A checkpoint costs its pause, and what the job was slower while it lasted. The second is
        measured by the job's steps, which tell it to a step and a second at best, so it never
        counts as more than the whole attempt.
        """
        pause, whole = _median(self.pauses), _median(self.attempts)
        return Costs(
            checkpoint_s=min(max(pause, _median(self.slowed)), max(pause, whole)),
            latency_s=_median(self.latencies),
            restart_s=_median(self.restarts or self.restores) or RESTART_S,
            attempt_s=whole,
        )


def _median(values: deque[float]) -> float:
    return median(values) if values else 0.0
