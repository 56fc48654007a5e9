"""One order and its outcome as plain values, and the clock that bounds the order."""

from __future__ import annotations

import time
from dataclasses import dataclass, field, replace

from coordinator.core.files import FileBack
from coordinator.core.model import (
    AddressMove,
    Cut,
    Endpoint,
    Failure,
    Finding,
    GpuMove,
    Phase,
    RankState,
    WorkerRecord,
)
from coordinator.core.timelines import Arrival, Lap

Key = tuple[str, int, str, Phase]

EARLY_S = 2.0  # before its deadline an order says who is awaited, so that it is heard in time,
EARLY_PART = 0.2  # or this part of a short one


@dataclass(frozen=True)
class Order:
    """What a coordinator wants done for one worker; the fields are those of the wire."""

    epoch: int
    job: str
    worker: int
    action: str
    phase: Phase
    deadline_s: float
    hold_s: float = 0.0
    cut: Cut = Cut.STEP
    target: int = 0
    world_size: int = 0
    stand_still_s: float = 0.0  # HOLD: how long ranks may stand still by the coordinator's policy
    workers: int = 0
    incarnation: int = 0
    reason: str = ""
    traceparent: str = ""  # W3C trace context of the leader's span for this phase
    base: str = ""  # PERSIST: a snapshot that stays until this is over
    kill: bool = False
    keep: bool = False
    tear_down: bool = False  # UNDO: other workers' ranks destroy their communicators, so do these
    record: WorkerRecord | None = None
    addresses: tuple[AddressMove, ...] = ()
    connections: tuple[Endpoint, ...] = ()
    devices: tuple[GpuMove, ...] = ()
    cold: bool = False  # start the command from scratch instead of putting images back
    stay: bool = False  # STOP: the job is to be restored at once

    @property
    def key(self) -> Key:
        """What makes two orders the same order."""
        return (self.job, self.worker, self.action, self.phase)

    @property
    def done(self) -> str:
        """The order without its worker, as kept by workers that have ended it."""
        return f"{self.phase} of {self.action}"

    @property
    def name(self) -> str:
        """The worker as people and lock names call it."""
        return f"{self.job}/{self.worker}"


@dataclass(frozen=True)
class Outcome:
    """How an order ended; `failure` set: not done, or perhaps done (`failure.definite`)."""

    failure: Failure | None = None
    ranks: tuple[RankState, ...] = ()
    findings: tuple[Finding, ...] = ()
    record: WorkerRecord | None = None
    held_ms: int = 0
    root_pid: int = 0
    note: str = ""
    took_ms: int = 0
    laps: tuple[Lap, ...] = ()
    arrivals: tuple[Arrival, ...] = ()  # of ranks: parked, or communicators rebuilt
    gpu: bool = False  # HOLD: a process of it has an NVIDIA device open
    files: tuple[FileBack, ...] = ()  # RESTORE: what was done to files
    files_unnamed: int = 0  # so many more


@dataclass
class Deadline:
    """What is left of the time an order may take, on this machine's monotonic clock.

    It also keeps where the time went, since orders are what a job stands still for.
    """

    total_s: float
    started: float = field(default_factory=time.monotonic)
    waited_s: float = 0.0  # time in the lane that does not count
    laps: dict[str, int] = field(default_factory=dict)  # part of the order: milliseconds
    arrivals: dict[int, int] = field(default_factory=dict)  # rank: milliseconds after the order

    def begin(self) -> None:
        """The whole time counts from now: what was waited for was not the order's own doing."""
        self.waited_s = time.monotonic() - self.started
        self.lap("wait")

    def lap(self, part: str) -> None:
        """A part of the order is done; it began where the last one ended."""
        self.laps[part] = self.took_ms - sum(self.laps.values())

    def arrive(self, rank: int) -> None:
        """A rank is where the order wants it."""
        self.arrivals.setdefault(rank, self.took_ms)

    def told(self, outcome: Outcome) -> Outcome:
        """The outcome, with where the time went."""
        return replace(
            outcome,
            took_ms=self.took_ms,
            laps=tuple(Lap(part, took_ms) for part, took_ms in self.laps.items()),
            arrivals=tuple(Arrival(rank, ms) for rank, ms in self.arrivals.items()),
        )

    @property
    def left_s(self) -> float:
        """Seconds left; never below a moment, so that a driver can still say what it waited for."""
        return max(0.05, self._left_s)

    @property
    def passed(self) -> bool:
        """Whether no time is left."""
        return self._left_s <= 0

    def nears(self, part: float = 1.0) -> bool:
        """Whether it is time to say who is awaited: nobody listens to what comes later."""
        return self._left_s <= part * min(EARLY_S, EARLY_PART * self.total_s)

    @property
    def _left_s(self) -> float:
        return self.total_s + self.waited_s - (time.monotonic() - self.started)

    @property
    def took_ms(self) -> int:
        """Milliseconds since the order came."""
        return round((time.monotonic() - self.started) * 1000)
