"""Counters and gauges of a coordinator, in Prometheus's words; docs/metrics.md lists them.

What happens is counted when it happens; how things are is read when somebody asks.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.core import GaugeMetricFamily

from coordinator.core.model import AttemptRecord, RestoreRecord, Snapshot
from coordinator.telemetry.families import Present, build_info, family

PHASE_S = (0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0, 300.0, 1000.0)
PAUSE_S = (0.1, 0.3, 1.0, 2.0, 3.0, 5.0, 10.0, 20.0, 30.0, 60.0, 120.0, 300.0)
STORE_S = (0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0)


@dataclass(frozen=True)
class JobNow:
    """One job at this moment."""

    job: str
    state: str
    ranks: int = 0
    parked: int = 0
    step: int = 0
    latest_unix_s: float = 0.0  # when the newest snapshot was committed; 0: there is none
    hold_left_s: float | None = None  # until the first dead-man timer; None: nothing is held


@dataclass(frozen=True)
class Now:
    """This replica at this moment."""

    leading: bool = False
    epoch: int = 0
    carried: int = 0  # shims whose streams are here
    connected: int = 0  # shims that the leader reaches; 0 where this is not the leader
    carriers: int = 0  # that follow this leader
    jobs: tuple[JobNow, ...] = ()


@dataclass
class Metrics:
    """All of one process; `now` is set by whoever knows."""

    now: Callable[[], Now] = Now
    registry: CollectorRegistry = field(default_factory=CollectorRegistry)

    def __post_init__(self) -> None:
        registry = self.registry
        build_info(registry)
        self._attempts = Counter(
            "allstop_attempts",
            "Checkpoints that have ended, by how and why",
            ["job", "outcome", "reason", "phase"],
            registry=registry,
        )
        self._restores = Counter(
            "allstop_restores",
            "Restores that have ended, by how and why",
            ["job", "outcome", "reason", "phase"],
            registry=registry,
        )
        self._refused = Counter(
            "allstop_refused_requests",
            "Requests for a checkpoint or a restore that were refused at once",
            ["reason"],
            registry=registry,
        )
        self._phase = Histogram(
            "allstop_phase_duration_seconds",
            "How long a phase took, from the first order to the last answer",
            ["action", "phase"],
            buckets=PHASE_S,
            registry=registry,
        )
        self._pause = Histogram(
            "allstop_pause_seconds",
            "The longest time a worker stood still in a committed checkpoint",
            ["job"],
            buckets=PAUSE_S,
            registry=registry,
        )
        self._stored = Counter(
            "allstop_stored_bytes", "Image bytes of committed snapshots", ["job"], registry=registry
        )
        self._size = Gauge(
            "allstop_snapshot_size_bytes",
            "Image bytes of the newest snapshot that was committed here",
            ["job"],
            registry=registry,
        )
        self._step = Gauge(
            "allstop_snapshot_step",
            "Step of the newest snapshot that was committed here",
            ["job"],
            registry=registry,
        )
        self._store = Histogram(
            "allstop_etcd_request_duration_seconds",
            "How long etcd took to answer, or not to",
            ["operation", "outcome"],
            buckets=STORE_S,
            registry=registry,
        )
        registry.register(Present(lambda: _present(self.now())))

    def attempt_ended(self, record: AttemptRecord, snapshot: Snapshot | None) -> None:
        """A checkpoint is over."""
        self._count(self._attempts, record, "aborted" if snapshot is None else "committed")
        self._phases("checkpoint", record)
        if snapshot is None:
            return
        self._pause.labels(record.job).observe(record.pause_ms / 1000)
        self._stored.labels(record.job).inc(snapshot.image_bytes)
        self._size.labels(record.job).set(snapshot.image_bytes)
        self._step.labels(record.job).set(snapshot.step)

    def restore_ended(self, record: RestoreRecord) -> None:
        """A restore is over."""
        self._count(self._restores, record, "running" if record.failure is None else "failed")
        self._phases("restore", record)

    def refused(self, kind: str) -> None:
        """A request was refused; `kind` is the error's class."""
        self._refused.labels(kind).inc()

    def etcd_answered(self, operation: str, outcome: str, took_s: float) -> None:
        """A request to etcd has ended: ok, refused, or lost (nobody knows)."""
        self._store.labels(operation, outcome).observe(took_s)

    def _count(self, ends: Counter, record: AttemptRecord | RestoreRecord, outcome: str) -> None:
        failure = record.failure
        why = (failure.kind, failure.phase) if failure is not None else ("", "")
        ends.labels(record.job, outcome, *why).inc()

    def _phases(self, action: str, record: AttemptRecord | RestoreRecord) -> None:
        for timing in record.timings:
            self._phase.labels(action, str(timing.phase)).observe(timing.took_ms / 1000)


def _present(now: Now) -> Iterator[GaugeMetricFamily]:
    yield family("allstop_leader", "1 where this replica leads", {(): float(now.leading)})
    if now.leading:
        yield family("allstop_epoch", "Epoch of this leader", {(): now.epoch})
        yield family(
            "allstop_connected_shims", "Shims that the leader reaches", {(): now.connected}
        )
        yield family("allstop_carriers", "Carriers that follow this leader", {(): now.carriers})
        yield from _jobs(now.jobs)
    yield family("allstop_carried_shims", "Shims with a stream here", {(): now.carried})


def _jobs(jobs: tuple[JobNow, ...]) -> Iterator[GaugeMetricFamily]:
    yield family(
        "allstop_job_state", "1 for the state a job is in",
        {(each.job, each.state): 1.0 for each in jobs}, "job", "state",
    )  # fmt: skip
    rows: tuple[tuple[str, str, Callable[[JobNow], float | None]], ...] = (
        ("allstop_ranks", "Ranks that are known", lambda job: job.ranks),
        ("allstop_parked_ranks", "Ranks that wait at the target of a hold", lambda job: job.parked),
        ("allstop_job_step", "Highest step seen of any rank", lambda job: job.step),
        (
            "allstop_hold_left_seconds",
            "Until the first shim lets its ranks go by itself, while they are held",
            lambda job: job.hold_left_s,
        ),
        (
            "allstop_last_snapshot_timestamp_seconds",
            "When the newest snapshot was committed",
            lambda job: job.latest_unix_s or None,
        ),
        (
            "allstop_snapshot_age_seconds",
            "How old the newest snapshot is",
            lambda job: max(0.0, time.time() - job.latest_unix_s) if job.latest_unix_s else None,
        ),
    )
    for name, about, of in rows:
        found: dict[tuple[str, ...], float] = {
            (each.job,): value for each in jobs if (value := of(each)) is not None
        }
        yield family(name, about, found, "job")
