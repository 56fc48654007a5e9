"""What Prometheus is told: names, units, and that each number moves when it should."""

from __future__ import annotations

import pytest
from prometheus_client import generate_latest
from prometheus_client.parser import text_string_to_metric_families

from coordinator.core.errors import StoreError
from coordinator.core.model import Cut, Snapshot
from coordinator.store.kv import Put, Range
from coordinator.store.memory import Fault, MemoryKeyValue
from coordinator.store.timed import TimedKeyValue
from coordinator.telemetry.metrics import JobNow, Metrics, Now
from tests.unit.telemetry.records import ABORTED, ACTION, COMMITTED

SNAPSHOT = Snapshot(ACTION, "llm", 7, 1, 4, 48, Cut.STEP, (), 2_594_958_569, "d", 1_010.0)


def told(metrics: Metrics) -> dict[tuple[str, ...], float]:
    """Name and label values, in the order of their names, to value."""
    text = generate_latest(metrics.registry).decode()
    return {
        (sample.name, *sample.labels.values()): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def test_how_checkpoints_ended() -> None:
    metrics = Metrics()
    metrics.attempt_ended(COMMITTED, SNAPSHOT)
    metrics.attempt_ended(ABORTED, None)
    metrics.attempt_ended(ABORTED, None)
    found = told(metrics)
    assert found["allstop_attempts_total", "llm", "committed", "", ""] == 1
    assert found["allstop_attempts_total", "llm", "aborted", "PARK", "DeadlinePassed"] == 2
    assert found["allstop_pause_seconds_sum", "llm"] == 1.69
    assert found["allstop_pause_seconds_count", "llm"] == 1
    assert found["allstop_phase_duration_seconds_sum", "checkpoint", "PARK"] == pytest.approx(8.07)
    assert found["allstop_snapshot_size_bytes", "llm"] == SNAPSHOT.image_bytes
    assert found["allstop_snapshot_step", "llm"] == 48


def test_how_things_are() -> None:
    job = JobNow("llm", "checkpointing", 4, 3, 47, 1_010.0, 12.5)
    metrics = Metrics(now=lambda: Now(True, 7, 2, 3, 1, (job,)))
    found = told(metrics)
    assert found["allstop_leader",] == 1
    assert found["allstop_epoch",] == 7
    assert found["allstop_connected_shims",] == 3
    assert found["allstop_carried_shims",] == 2
    assert found["allstop_parked_ranks", "llm"] == 3
    assert found["allstop_hold_left_seconds", "llm"] == 12.5
    assert found["allstop_job_state", "llm", "checkpointing"] == 1
    assert found["allstop_snapshot_age_seconds", "llm"] > 1e9


def test_a_standby_says_so_and_nothing_about_jobs() -> None:
    found = told(Metrics(now=lambda: Now(carried=5)))
    assert found["allstop_leader",] == 0
    assert found["allstop_carried_shims",] == 5
    assert not any(name.startswith(("allstop_job", "allstop_epoch")) for name, *_ in found)


async def test_how_long_etcd_takes() -> None:
    metrics, memory = Metrics(), MemoryKeyValue()
    kv = TimedKeyValue(memory, metrics.etcd_answered)
    await kv.read(Range("/x"))
    memory.fail_next(Fault.LOST_APPLIED)
    with pytest.raises(StoreError):
        await kv.write([], [Put("/x", b"1")])
    found = told(metrics)
    assert found["allstop_etcd_request_duration_seconds_count", "read", "ok"] == 1
    assert found["allstop_etcd_request_duration_seconds_count", "write", "lost"] == 1
