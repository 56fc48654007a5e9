"""Hears of everything beside whom it concerns: timelines, traces and metrics come of it.

The core knows nothing of this, and nothing that breaks in here breaks anything else.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import structlog
from allstop.v1 import shim_pb2

from coordinator.core import commands
from coordinator.core.model import AttemptRecord
from coordinator.core.timelines import Timeline
from coordinator.telemetry.metrics import Metrics
from coordinator.telemetry.spans import trace_of
from coordinator.telemetry.timings import Timings

if TYPE_CHECKING:
    from coordinator.telemetry.export import Exporter

log = structlog.get_logger(__name__)


@dataclass(frozen=True)
class Telemetry:
    """What a process has for being watched; it outlives its leaderships."""

    metrics: Metrics = field(default_factory=Metrics)
    exporter: Exporter | None = None


class Observer:
    """The observer of one leadership."""

    def __init__(self, telemetry: Telemetry, keep: Callable[[Timeline], None]) -> None:
        """`keep` stores a timeline without waiting."""
        self._telemetry = telemetry
        self._keep = keep
        self._timings = Timings()

    def answered(self, node: str, result: shim_pb2.OrderResult) -> None:
        """A shim answered an order."""
        try:
            self._timings.answered(node, result)
        except Exception:
            log.exception("an answer could not be kept for its timeline", node=node)

    def announced(self, announce: commands.Announce) -> None:
        """The core decided something; what counts is how an action ended."""
        if not announce.last:
            return
        try:
            self._ended(announce)
        except Exception:
            log.exception("the end of an action could not be told", action=announce.action)

    def refused(self, refuse: commands.Refuse) -> None:
        """The core refused a request."""
        self._telemetry.metrics.refused(refuse.failure.kind)

    def _ended(self, announce: commands.Announce) -> None:
        record = announce.attempt or announce.restore
        if record is None:
            return
        timeline = self._timings.ended(record.job, announce.action)
        self._keep(timeline)
        if isinstance(record, AttemptRecord):
            self._telemetry.metrics.attempt_ended(record, announce.snapshot)
        else:
            self._telemetry.metrics.restore_ended(record)
        if self._telemetry.exporter is not None:
            trace = trace_of(record, timeline)
            own = [span for span in trace.spans if span.parent in (0, trace.root.identity)]
            self._telemetry.exporter.send(trace.identity, trace.began_unix_s, own)
