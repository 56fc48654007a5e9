"""Where the time of workers went, as plain values; as in `model`, each has its message."""

from __future__ import annotations

from dataclasses import dataclass

from coordinator.core.model import Phase


@dataclass(frozen=True)
class Lap:
    """One part of an order, as the shim's clock saw it; the parts follow each other."""

    part: str  # look, preflight, flag, stop, files, lock, criu, copy …
    took_ms: int


@dataclass(frozen=True)
class Arrival:
    """When one rank was where an order wants it."""

    rank: int
    after_ms: int  # after the order came to the shim


@dataclass(frozen=True)
class WorkerTiming:
    """Where the time of one worker went in one phase, as its shim saw it."""

    phase: Phase
    worker: int
    node: str
    took_ms: int
    laps: tuple[Lap, ...] = ()
    arrivals: tuple[Arrival, ...] = ()  # PARK: the ranks of the worker
    failed: bool = False


@dataclass(frozen=True)
class Timeline:
    """What the workers of an attempt or a restore spent their time on; of many, the slowest."""

    job: str
    action: str
    timings: tuple[WorkerTiming, ...]  # by phase, the slowest first
    left_out: int = 0  # answers that were quicker than all of these
