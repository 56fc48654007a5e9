"""An attempt or a restore as a tree of spans: action, phases, workers, and what each did.

Ids are made from the action's id alone, so that every leader, every shim and `allstop trace` mean
the same spans without having heard of each other, and a new leader goes on with the same trace.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from hashlib import blake2b
from statistics import median

from coordinator.core.model import (
    AttemptRecord,
    AttemptState,
    Phase,
    PhaseTiming,
    RestoreRecord,
    RestoreState,
)
from coordinator.core.timelines import Lap, Timeline, WorkerTiming

Value = str | int | float | bool

# What the end of a phase means for the whole action.
_MOMENTS = {
    Phase.HOLD: "held",
    Phase.PARK: "parked",
    Phase.DUMP: "cut",
    Phase.COMMIT: "committed",
    Phase.CLEAR: "cleared",
    Phase.RESTORE: "all back",
    Phase.OPEN: "networks open",
    Phase.RELEASE: "released",
}
STRAGGLING = 1.5  # times the median of its phase, and
STRAGGLING_MS = 20  # so much above it
_FAILED = frozenset({AttemptState.ABORTED, RestoreState.FAILED})


@dataclass(frozen=True)
class Moment:
    """Something that happened at one point of a span."""

    name: str
    at_ms: float  # after the request
    attributes: Mapping[str, Value] = field(default_factory=dict)


@dataclass(frozen=True)
class Span:
    """One bar of the picture."""

    name: str
    identity: int
    parent: int  # 0: the root
    began_ms: float  # after the request
    took_ms: float
    attributes: Mapping[str, Value] = field(default_factory=dict)
    moments: tuple[Moment, ...] = ()
    failed: str = ""  # why, in one sentence; empty: it did not fail

    @property
    def ended_ms(self) -> float:
        """After the request."""
        return self.began_ms + self.took_ms


@dataclass(frozen=True)
class Trace:
    """All spans of one action, parents before children."""

    identity: int
    action: str
    began_unix_s: float
    spans: tuple[Span, ...]

    @property
    def root(self) -> Span:
        """The span of the whole action."""
        return self.spans[0]

    def children(self, of: Span) -> list[Span]:
        """Spans right below one, in the order they began."""
        return [each for each in self.spans if each.parent == of.identity]


def trace_id(action: str) -> int:
    """128 bits, never 0."""
    return int.from_bytes(blake2b(action.encode(), digest_size=16).digest()) or 1


def span_id(action: str, *path: object) -> int:
    """64 bits, never 0; without a path the root's."""
    name = "/".join((action, *map(str, path)))
    return int.from_bytes(blake2b(name.encode(), digest_size=8).digest()) or 1


def traceparent(action: str, phase: Phase) -> str:
    """W3C trace context of an order: its parent is the span of the phase."""
    return f"00-{trace_id(action):032x}-{span_id(action, phase):016x}-01"


def straggles(worker: Span, workers: list[Span]) -> bool:
    """Whether the others had long been done when this one was."""
    usual = median(each.took_ms for each in workers)
    return worker.took_ms > STRAGGLING * usual and worker.took_ms - usual >= STRAGGLING_MS


def trace_of(record: AttemptRecord | RestoreRecord, timeline: Timeline | None) -> Trace:
    """What is known of an action that has ended, with its workers where a timeline was kept."""
    action = record.attempt if isinstance(record, AttemptRecord) else record.restore
    phases = sorted(record.timings, key=lambda each: each.started_ms)
    root = _root(record, action, phases)
    spans = [root]
    for timing in phases:
        workers = [w for w in timeline.timings if w.phase is timing.phase] if timeline else []
        spans.append(_phase_span(action, root, timing, record))
        for worker in workers:
            spans.extend(_worker_spans(action, timing, worker))
    return Trace(trace_id(action), action, record.requested_unix_s, tuple(spans))


def _root(record: AttemptRecord | RestoreRecord, action: str, phases: list[PhaseTiming]) -> Span:
    ended_ms = max((each.started_ms + each.took_ms for each in phases), default=0)
    attributes: dict[str, Value] = {
        "allstop.job": record.job,
        "allstop.action": action,
        "allstop.epoch": record.epoch,
        "allstop.incarnation": record.incarnation,
        "allstop.outcome": str(record.state),
        "allstop.reason": record.reason,
    }
    if isinstance(record, AttemptRecord):
        name = "checkpoint"
        attributes |= {
            "allstop.step": record.target,
            "allstop.cut": str(record.cut),
            "allstop.world_size": record.world_size,
            "allstop.pause_ms": record.pause_ms,
        }
    else:
        name = "restore"
        attributes["allstop.snapshot"] = record.snapshot
    moments = [
        Moment(_MOMENTS[each.phase], each.started_ms + each.took_ms)
        for each in phases
        if each.phase in _MOMENTS and not _was_cut_short(record, each)
    ]
    failed = ""
    if record.state in _FAILED:
        failed = record.failure.what if record.failure is not None else record.reason
        moments.append(Moment("aborted", _given_up_ms(phases), {"allstop.reason": record.reason}))
    return Span(name, span_id(action), 0, 0, ended_ms, attributes, tuple(moments), failed)


def _given_up_ms(phases: list[PhaseTiming]) -> float:
    """When it was decided to give up: UNDO began then, or the last phase ended."""
    undo = [each.started_ms for each in phases if each.phase is Phase.UNDO]
    return undo[0] if undo else max((e.started_ms + e.took_ms for e in phases), default=0)


def _was_cut_short(record: AttemptRecord | RestoreRecord, timing: PhaseTiming) -> bool:
    """Whether the action failed in this phase, which then did not reach what it was for."""
    return record.failure is not None and record.failure.phase == timing.phase


def _phase_span(
    action: str, root: Span, timing: PhaseTiming, record: AttemptRecord | RestoreRecord
) -> Span:
    failed = record.failure.what if record.failure and _was_cut_short(record, timing) else ""
    attributes: dict[str, Value] = {"allstop.phase": str(timing.phase)}
    if timing.slowest:
        attributes["allstop.slowest"] = timing.slowest
    return Span(
        str(timing.phase),
        span_id(action, timing.phase),
        root.identity,
        timing.started_ms,
        timing.took_ms,
        attributes,
        failed=failed,
    )


def _worker_spans(action: str, phase: PhaseTiming, worker: WorkerTiming) -> Iterator[Span]:
    return worker_spans(
        action,
        worker.phase,
        worker.worker,
        parent=span_id(action, worker.phase),
        began_ms=phase.started_ms,
        took_ms=worker.took_ms,
        laps=worker.laps,
        arrived={each.rank: each.after_ms for each in worker.arrivals},
        place={"allstop.worker": worker.worker, "allstop.node": worker.node},
        failed="the order was not carried out" if worker.failed else "",
    )


def worker_spans(
    action: str,
    phase: Phase,
    worker: int,
    *,
    parent: int,
    began_ms: float,
    took_ms: float,
    laps: Iterable[Lap],
    arrived: Mapping[int, float],
    place: Mapping[str, Value],
    failed: str,
) -> Iterator[Span]:
    """The worker's bar, its parts one after another below it, and its ranks, by what they took.

    `place` is said of each of them. Leaders and shims give the same spans the same ids.
    """
    own = span_id(action, phase, worker)
    yield Span(f"worker {worker}", own, parent, began_ms, took_ms, place, failed=failed)
    at_ms = began_ms
    for lap in laps:
        identity = span_id(action, phase, worker, lap.part)
        more = {**place, "allstop.part": lap.part}
        yield Span(lap.part, identity, own, at_ms, lap.took_ms, more)
        at_ms += lap.took_ms
    for rank, after_ms in arrived.items():
        identity = span_id(action, phase, worker, f"rank {rank}")
        more = {**place, "allstop.rank": rank}
        yield Span(f"rank {rank}", identity, own, began_ms, after_ms, more)
