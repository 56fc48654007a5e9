"""The measurement of coordination measures: small, with all that is real about it."""

import json
import shutil
import subprocess
import sys
from collections.abc import Sequence
from typing import Any

import pytest

from bench.coordination import Coordination, Spread, percentile

pytestmark = [pytest.mark.timeout(240), pytest.mark.alone]

RUN_S_MAX = 200


def bench(*arguments: str) -> Sequence[dict[str, Any]]:
    """`allstop bench coordination` with JSON lines."""
    command = [sys.executable, "-m", "coordinator.cli.main", "bench", "coordination", "-o", "json"]
    made = subprocess.run([*command, *arguments], capture_output=True, text=True, timeout=RUN_S_MAX)
    assert made.returncode == 0, made.stderr
    return [json.loads(line) for line in made.stdout.splitlines()]


@pytest.mark.slow
@pytest.mark.etcd
@pytest.mark.skipif(shutil.which("openssl") is None, reason="makes its certificates with openssl")
def test_shims_with_and_without_fronts() -> None:
    plain, behind = bench("--shims", "12", "--fronts", "0", "--fronts", "2", "--count", "2")
    for found in (plain, behind):
        assert (found["shims"], found["tls"], found["count"]) == (12, True, 2)
        assert 0 < found["parked"]["p50_ms"] < found["cut"]["p50_ms"]
        assert found["cut"]["p50_ms"] < found["committed"]["p50_ms"]
        assert found["floor_ms"] > 0
        assert found["etcd_transactions"] <= 6, "admitted, cut, workers, committed, timeline"
        assert found["etcd_keys"] == 12 + 6
    rounds, rest = 4, 8  # a message of each carrier a round; the last round may be in pieces
    assert plain["messages"] <= rounds + rest
    assert behind["messages"] <= 2 * rounds + rest, "in proportion to fronts, not to shims"


def test_percentiles_are_values_that_were_measured() -> None:
    values = [float(value) for value in range(1, 101)]
    assert (percentile(values, 0.5), percentile(values, 0.99)) == (50.0, 99.0)
    assert (percentile([7.0], 0.5), percentile([3.0, 1.0, 2.0], 0.99)) == (7.0, 3.0)


def test_a_goal_that_is_missed_is_named() -> None:
    spread = Spread(600.0, 700.0)
    found = Coordination(
        shims=256,
        fronts=0,
        tls=True,
        count=1,
        rounds=4,
        parked=spread,
        cut=spread,
        committed=spread,
        phases_ms={},
        floor_ms=300.0,
        ratio=2.0,
        cpu_ms=1.0,
        idle_cpu_ms=1.0,
        floor_cpu_ms=1.0,
        bytes_per_shim=250_000,
        messages=4,
        etcd_transactions=4,
        etcd_keys=261,
    )
    assert len(found.missed()) == 3
    assert len(found.to_fields()["missed"]) == 3  # type: ignore[arg-type]
