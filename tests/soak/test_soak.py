"""A short soak, whole; and one that is interrupted."""

from __future__ import annotations

import itertools
import json
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

from tests.soak.killer import draw
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

SECONDS, MTBF_S = 36.0, 10.0
SHORT = ("--minutes", str(SECONDS / 60), "--mtbf", str(MTBF_S))
ENDS_S_MAX = 30.0
FIELDS = {"kills", "recoveries", "steps_repeated", "checkpoints", "goodput", "bit_exact", "seed"}


def soak(place: Path, *options: str) -> subprocess.Popen[str]:
    return start("tests.soak", "ALLSTOP_CHAOS_DIRECTORY", place, *options)


def with_a_loss(seed: int) -> int:
    """The first seed from this one on by which a node is taken early enough to be missed."""
    return next(
        each
        for each in itertools.count(seed)
        if any(kill.kind == "node_lost" for kill in draw(each, SECONDS / 2, MTBF_S))
    )


def test_a_short_soak(place: Path, seed: int) -> None:
    before = traces(place)
    run = soak(place, *SHORT, "--seed", str(with_a_loss(seed)))
    out, err = run.communicate()
    assert run.returncode == 0, f"{err[-12000:]}\n{out[-2000:]}"
    summary: dict[str, Any] = json.loads(out.splitlines()[-1])
    assert summary.keys() >= FIELDS
    assert summary["violations"] == 0
    assert summary["bit_exact"] is True
    assert summary["kills"] == sum(summary["kinds"].values()) >= 1
    assert summary["kinds"].get("node_lost", 0) + summary["nobody_to_take"] >= 1
    assert summary["checkpoints"] >= 1
    assert 0 < summary["goodput"] <= 1.1
    assert not list(place.iterdir()), "the run left files"
    assert traces(place) == before


def test_interrupted_it_leaves_nothing(place: Path) -> None:
    before = traces(place)
    run = soak(place, "--minutes", "5", "--mtbf", "2", "--seed", "1")
    said_until(run, "for ")  # somebody was just taken
    began = time.monotonic()
    run.send_signal(signal.SIGTERM)
    run.communicate(timeout=ENDS_S_MAX)
    assert time.monotonic() - began < ENDS_S_MAX
    assert run.returncode == 130
    assert not list(place.iterdir()), "the run left files"
    assert traces(place) == before
