"""Counters and gauges of a shim, in Prometheus's words; docs/metrics.md lists them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from prometheus_client import CollectorRegistry, Counter, Histogram, start_http_server
from prometheus_client.core import GaugeMetricFamily

from coordinator.core.errors import SetupError
from coordinator.core.model import Phase
from coordinator.telemetry.families import Present, build_info, family
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
        build_info(registry)
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
        registry.register(Present(lambda: _present(self.now())))

    def order_ended(self, order: Order, outcome: Outcome) -> None:
        """An order has ended."""
        how = "done" if outcome.failure is None else "failed"
        self._orders.labels(str(order.phase), how).observe(outcome.took_ms / 1000)
        if order.phase in LETS_GO and outcome.held_ms > 0:
            self._held.labels(order.job).observe(outcome.held_ms / 1000)
        if order.phase is Phase.DUMP and outcome.record is not None:
            self._dumped.labels(order.job).inc(outcome.record.image_bytes)


def _present(now: ShimNow) -> Iterator[GaugeMetricFamily]:
    for name, about, value in (
        ("connected", "1 while a coordinator has its stream", now.connected),
        ("epoch", "Highest epoch it has obeyed", now.epoch),
        ("staging_free_bytes", "Room for images", now.staging_free_bytes),
    ):
        yield family(f"allstop_shim_{name}", about, {(): float(value)})
    yield from _workers({(each.job, str(each.worker)): each for each in now.workers})


def _workers(workers: dict[tuple[str, str], WorkerNow]) -> Iterator[GaugeMetricFamily]:
    states: dict[tuple[str, ...], float] = {
        (*place, each.state): 1.0 for place, each in workers.items()
    }
    about = "1 for the state a worker is in"
    yield family("allstop_shim_worker_state", about, states, "job", "worker", "state")
    rows: tuple[tuple[str, str, Callable[[WorkerNow], float | None]], ...] = (
        ("ranks", "Ranks that are known", lambda worker: worker.ranks),
        ("parked_ranks", "Ranks that wait at the target of a hold", lambda worker: worker.parked),
        (
            "hold_left_seconds",
            "Until the dead-man timer lets the worker go",
            lambda worker: worker.hold_left_s or None,
        ),
    )
    for name, about, of in rows:
        found: dict[tuple[str, ...], float] = {
            place: value for place, each in workers.items() if (value := of(each)) is not None
        }
        yield family(f"allstop_shim_{name}", about, found, "job", "worker")


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
