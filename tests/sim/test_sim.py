"""A short run of the simulator, its exact replay, and bugs that it has to find.

Each run is a process of its own, since the simulator takes the clock over before anything is
loaded.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
SEEDS = 40
TIMEOUT_S = 900
# How many seeds may be tried until each of these is found; see design/bugs.md.
PLANTS = {
    "early-unlock": 4,
    "vote-missing": 4,
    "commit-without-epoch": 60,
    "hold-ignored": 240,
    "old-epoch-obeyed": 240,
    "deleted-while-used": 20,
    "garbage-by-listing": 240,
    "nothing-is-suspect": 40,
}


def simulate(*arguments: str) -> tuple[int, dict[str, Any], str]:
    """Exit code, the last line, and everything that was said."""
    command = [sys.executable, "-m", "tests.sim", *arguments]
    paths = os.pathsep.join((str(ROOT), str(ROOT / "proto")))
    done = subprocess.run(
        command,
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": paths},
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    said = done.stdout + done.stderr
    lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
    assert lines, said
    return done.returncode, json.loads(lines[-1]), said


@pytest.mark.slow
@pytest.mark.timeout(TIMEOUT_S)
def test_no_seed_breaks_an_invariant(pytestconfig: pytest.Config) -> None:
    first = pytestconfig.getoption("--seed") % 1_000_000
    code, summary, said = simulate("--seeds", str(SEEDS), "--first", str(first))
    assert (code, summary["violations"]) == (0, 0), said
    assert summary["seeds"] == SEEDS
    assert summary["committed"] > SEEDS
    assert summary["restored"] > SEEDS
    assert summary["deleted"] > SEEDS
    assert summary["faults"] > SEEDS


@pytest.mark.timeout(TIMEOUT_S)
def test_a_seed_brings_back_the_same_run() -> None:
    first, second = (simulate("--seed", "7", "--quiet")[1] for _ in range(2))
    assert first["digest"] == second["digest"]
    assert first["virtual_s"] == second["virtual_s"]
    assert simulate("--seed", "8", "--quiet")[1]["digest"] != first["digest"]


@pytest.mark.slow
@pytest.mark.timeout(TIMEOUT_S)
@pytest.mark.parametrize("plant", PLANTS)
def test_a_planted_bug_is_found(plant: str) -> None:
    code, summary, said = simulate("--plant", plant, "--seeds", str(PLANTS[plant]))
    assert (code, summary["violations"] > 0) == (1, True), said
