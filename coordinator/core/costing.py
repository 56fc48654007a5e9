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
    rate: float = 0.0  # steps a second while nothing is done to the job; 0: not known
    _step: int = 0
    _at: float = -1.0
    _began: tuple[int, float] | None = None  # step and time when an attempt began

    @property
    def known(self) -> bool:
        """Whether one checkpoint was seen at all."""
        return bool(self.attempts)

    def stepped(self, step: int, now: float, *, busy: bool) -> None:
        """The job is at this step; `busy`: something is being done to it."""
        if not busy and self._at >= 0 and now > self._at and step > self._step:
            rate = (step - self._step) / (now - self._at)
            self.rate = RATE_KEPT * self.rate + (1 - RATE_KEPT) * rate if self.rate else rate
        if busy and self._began is None:
            self._began = (step, now)
        if step != self._step or self._at < 0 or busy:
            self._step, self._at = step, now

    def forget_steps(self) -> None:
        """The job stands, or begins anew: what it does next says nothing of its speed."""
        self._at, self._began = -1.0, None

    def attempt_ended(self, record: AttemptRecord, now: float) -> None:
        """One that was not committed tells nothing."""
        began, self._began = self._began, None
        if record.state is not AttemptState.COMMITTED or record.stop:
            return
        ends = {t.phase: (t.started_ms + t.took_ms) / 1000 for t in record.timings}
        whole = max(ends.values(), default=0.0)
        self.pauses.append(record.pause_ms / 1000)
        self.attempts.append(whole)
        self.latencies.append(max(0.0, whole - ends.get(Phase.DUMP, whole)))
        if began is not None and self.rate and self._at > began[1]:
            lost = (self._at - began[1]) - (self._step - began[0]) / self.rate
            self.slowed.append(max(0.0, lost))

    def restore_ended(self, record: RestoreRecord) -> None:
        """One that failed tells nothing."""
        if record.state is RestoreState.RUNNING:
            ends = [(t.started_ms + t.took_ms) / 1000 for t in record.timings]
            self.restarts.append(max(ends, default=0.0))

    def costs(self) -> Costs:
        """The medians; a checkpoint costs its pause, and what the job was slower while it lasted.

        The second is measured by the job's steps, which tell it to a step and a second at best, so
        it never counts as more than the whole attempt.
        """
        pause, whole = _median(self.pauses), _median(self.attempts)
        return Costs(
            checkpoint_s=min(max(pause, _median(self.slowed)), max(pause, whole)),
            latency_s=_median(self.latencies),
            restart_s=_median(self.restarts) if self.restarts else RESTART_S,
            attempt_s=whole,
        )


def _median(values: deque[float]) -> float:
    return median(values) if values else 0.0
