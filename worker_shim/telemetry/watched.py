"""Each order that a shim has carried out, counted and told as spans of the leader's trace."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING

import structlog

from coordinator.telemetry.spans import Span, Value, worker_spans
from worker_shim.agent.order import Order, Outcome
from worker_shim.telemetry.metrics import ShimMetrics

if TYPE_CHECKING:
    from coordinator.telemetry.export import Exporter

log = structlog.get_logger(__name__)

_TRACEPARENT = re.compile(r"00-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})")  # W3C trace context
_SAMPLED = 1


class Watched:
    """Told of every order's end; whatever breaks in here breaks nothing else."""

    def __init__(self, node: str, metrics: ShimMetrics, exporter: Exporter | None = None) -> None:
        """Without `exporter` no spans are made."""
        self.metrics = metrics
        self._node = node
        self._exporter = exporter

    def finished(self, order: Order, outcome: Outcome) -> None:
        """An order has ended, well or not."""
        try:
            self.metrics.order_ended(order, outcome)
            found = _TRACEPARENT.fullmatch(order.traceparent)
            if self._exporter is None or found is None or not int(found[3], 16) & _SAMPLED:
                return
            began_unix_s = time.time() - outcome.took_ms / 1000
            spans = list(_spans(self._node, order, outcome, int(found[2], 16)))
            self._exporter.send(int(found[1], 16), began_unix_s, spans)
        except Exception:
            log.exception("an order could not be told", phase=str(order.phase))

    async def close(self) -> None:
        """Send what is queued."""
        if self._exporter is not None:
            await self._exporter.close()


def _spans(node: str, order: Order, outcome: Outcome, parent: int) -> Iterator[Span]:
    """The worker's span; below it the parts of the work, and each rank for as long as it took."""
    place: dict[str, Value] = {
        "allstop.job": order.job,
        "allstop.action": order.action,
        "allstop.epoch": order.epoch,
        "allstop.phase": str(order.phase),
        "allstop.worker": order.worker,
        "allstop.node": node,
    }
    arrived = {arrival.rank: arrival.after_ms for arrival in outcome.arrivals}
    ranks = sorted({state.rank for state in outcome.ranks} | arrived.keys())
    return worker_spans(
        order.action,
        order.phase,
        order.worker,
        parent=parent,
        began_ms=0.0,
        took_ms=outcome.took_ms,
        laps=outcome.laps,
        arrived={rank: arrived.get(rank, outcome.took_ms) for rank in ranks},
        place=place,
        failed=outcome.failure.what if outcome.failure is not None else "",
    )
