"""A short run of chaos, whole; and one that is interrupted."""

from __future__ import annotations

import json
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

from tests.support.interrupting import said_until
from tests.support.running import place, start, traces

__all__ = ["place"]

pytestmark = [
    pytest.mark.root,
    pytest.mark.criu,
    pytest.mark.etcd,
    pytest.mark.torch,
    pytest.mark.slow,
    pytest.mark.timeout(900),
]

ENDS_S_MAX = 30.0
MINUTES = "0.75"
FIELDS = {
    *("attempts", "committed", "aborted", "faults_injected", "kinds", "restores"),
    *("violations", "jobs_hurt"),
}


def chaos(place: Path, *options: str) -> subprocess.Popen[str]:
    return start("tests.chaos", "ALLSTOP_CHAOS_DIRECTORY", place, *options)


def test_a_short_run(place: Path, seed: int) -> None:
    before = traces(place)
    run = chaos(place, "--minutes", MINUTES, "--seed", str(seed))
    out, err = run.communicate()
    assert run.returncode == 0, f"{err[-12000:]}\n{out[-2000:]}"
    summary: dict[str, Any] = json.loads(out.splitlines()[-1])
    assert summary.keys() >= FIELDS
    assert (summary["violations"], summary["jobs_hurt"]) == (0, 0), err[-12000:]
    assert summary["committed"] == summary["verified"] >= 2
    assert summary["faults_injected"] == sum(summary["kinds"].values()) > 0
    assert summary["steps_compared"] > 100
    assert not list(place.iterdir()), "the run left files"
    assert traces(place) == before


def test_interrupted_it_leaves_nothing(place: Path) -> None:
    before = traces(place)
    run = chaos(place, "--minutes", "5", "--seed", "1")
    said_until(run, "DUMPING")
    began = time.monotonic()
    run.send_signal(signal.SIGINT)
    run.communicate(timeout=ENDS_S_MAX)
    assert time.monotonic() - began < ENDS_S_MAX
    assert run.returncode == 130
    assert not list(place.iterdir()), "the run left files"
    assert traces(place) == before
