"""Counters and gauges of a shim, in Prometheus's words; docs/metrics.md lists them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, start_http_server
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from coordinator.core.errors import SetupError
from coordinator.core.model import Phase
from coordinator.telemetry.version import own_version
from worker_shim.agent.order import Order, Outcome

ORDER_S = (0.001, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0, 300.0)
HELD_S = (0.1, 0.3, 1.0, 2.0, 3.0, 5.0, 10.0, 20.0, 30.0, 60.0, 120.0, 300.0)
LETS_GO = frozenset({Phase.RESUME, Phase.UNDO})


@dataclass(frozen=True)
class WorkerNow:
    """One worker of this node at this moment."""

    job: str
    worker: int
    state: str
    ranks: int
    parked: int
    hold_left_s: float  # until the dead-man timer lets it go; 0: it does not run


@dataclass(frozen=True)
class ShimNow:
    """This shim at this moment."""

    connected: bool = False
    epoch: int = 0
    staging_free_bytes: int = 0
    workers: tuple[WorkerNow, ...] = ()


@dataclass
class ShimMetrics:
    """All of one shim; `now` is set by whoever knows, and asked from the server's own thread."""

    now: Callable[[], ShimNow] = ShimNow
    registry: CollectorRegistry = field(default_factory=CollectorRegistry)

    def __post_init__(self) -> None:
        registry = self.registry
        build = Gauge("allstop_build_info", "What runs here", ["version"], registry=registry)
        build.labels(own_version()).set(1)
        self._orders = Histogram(
            "allstop_shim_order_duration_seconds",
            "How long an order took, from its receipt to its answer",
            ["phase", "outcome"],
            buckets=ORDER_S,
            registry=registry,
        )
        self._held = Histogram(
            "allstop_shim_held_seconds",
            "How long a worker stood still",
            ["job"],
            buckets=HELD_S,
            registry=registry,
        )
        self._dumped = Counter(
            "allstop_shim_dumped_bytes", "Images that CRIU has written", ["job"], registry=registry
        )
        registry.register(_Present(self))

    def order_ended(self, order: Order, outcome: Outcome) -> None:
        """An order has ended."""
        how = "done" if outcome.failure is None else "failed"
        self._orders.labels(str(order.phase), how).observe(outcome.took_ms / 1000)
        if order.phase in LETS_GO and outcome.held_ms > 0:
            self._held.labels(order.job).observe(outcome.held_ms / 1000)
        if order.phase is Phase.DUMP and outcome.record is not None:
            self._dumped.labels(order.job).inc(outcome.record.image_bytes)


class _Present(Collector):
    """How things are, asked for at each scrape."""

    def __init__(self, metrics: ShimMetrics) -> None:
        self._metrics = metrics

    def collect(self) -> Iterator[GaugeMetricFamily]:
        """Every gauge that has no memory."""
        now = self._metrics.now()
        plain = (
            ("allstop_shim_connected", "1 while a coordinator has its stream", now.connected),
            ("allstop_shim_epoch", "Highest epoch it has obeyed", now.epoch),
            ("allstop_shim_staging_free_bytes", "Room for images", now.staging_free_bytes),
        )
        for name, about, value in plain:
            yield GaugeMetricFamily(name, about, value=float(value))
        state = GaugeMetricFamily(
            "allstop_shim_worker_state",
            "1 for the state a worker is in",
            labels=("job", "worker", "state"),
        )
        ranks = _of_worker("allstop_shim_ranks", "Ranks that are known")
        parked = _of_worker("allstop_shim_parked_ranks", "Ranks that wait at the target of a hold")
        left = _of_worker(
            "allstop_shim_hold_left_seconds", "Until the dead-man timer lets the worker go"
        )
        for each in now.workers:
            place = (each.job, str(each.worker))
            state.add_metric((*place, each.state), 1)
            ranks.add_metric(place, each.ranks)
            parked.add_metric(place, each.parked)
            if each.hold_left_s:
                left.add_metric(place, each.hold_left_s)
        yield from (state, ranks, parked, left)

    def describe(self) -> Iterator[GaugeMetricFamily]:
        """Nothing: names are known when they are collected."""
        return iter(())


def _of_worker(name: str, about: str) -> GaugeMetricFamily:
    return GaugeMetricFamily(name, about, labels=("job", "worker"))


def serve_metrics(registry: CollectorRegistry, address: str) -> Callable[[], None]:
    """Answer scrapes at host:port, in a thread of its own; return what ends that.

    Raises SetupError when nobody can listen there.
    """
    host, _, port = address.rpartition(":")
    try:
        server, thread = start_http_server(int(port), host.strip("[]") or "127.0.0.1", registry)
    except (OSError, ValueError, OverflowError) as error:
        raise SetupError(
            f"cannot listen on {address}: {error}", advice="--metrics takes host:port"
        ) from error

    def stop() -> None:
        server.shutdown()
        server.server_close()
        thread.join()

    return stop
