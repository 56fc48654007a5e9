"""The demo as a user runs it: whole, with another node lost, frozen, and interrupted."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.interrupting import said_until

pytestmark = [
    pytest.mark.root,
    pytest.mark.criu,
    pytest.mark.etcd,
    pytest.mark.torch,
    pytest.mark.slow,
    pytest.mark.timeout(420),
    pytest.mark.alone,  # it trains on every core there is, and must not end while it is saved
]

ALLSTOP = [sys.executable, "-m", "coordinator.cli.main", "demo"]
ENDS_S_MAX = 20.0
FIELDS = {
    *("world_size", "snapshot", "killed_node", "moved", "connections_kept", "steps_repeated"),
    *("bit_exact", "final_loss", "pause_ms", "raw_dump_ms", "recovery_ms"),
}


@pytest.fixture
def place() -> Iterator[Path]:
    """Outside of /tmp, of which every node of the demo has its own."""
    with tempfile.TemporaryDirectory(prefix="allstop-test-", dir="/var/tmp") as directory:
        yield Path(directory)


def traces() -> dict[str, Any]:
    """What a demo must not leave behind, as this machine shows it now."""
    processes = {
        pid.name
        for pid in Path("/proc").iterdir()
        if pid.name.isdecimal() and b"allstop-demo-" in read(pid / "cmdline")
    }
    return {
        "processes": processes,
        "links": subprocess.check_output(["ip", "-o", "link"], text=True).count("\n"),
        "named namespaces": subprocess.check_output(["ip", "netns"], text=True),
        "mounts": Path("/proc/self/mounts").read_text(),
        "tables": subprocess.check_output(["nft", "list", "tables"], text=True),
    }


def read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:
        return b""


def start(place: Path, *options: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [*ALLSTOP, "--json", *options],
        env={**os.environ, "ALLSTOP_DEMO_DIRECTORY": str(place)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def play(place: Path, *options: str) -> dict[str, Any]:
    """Run it to its end and return its last line."""
    run = start(place, *options)
    out, err = run.communicate()
    assert run.returncode == 0, err[-6000:]
    report: dict[str, Any] = json.loads(out.splitlines()[-1])
    assert report.keys() >= FIELDS
    return report


def check(report: dict[str, Any], place: Path, *, killed: str) -> None:
    """What is true of every demo with one spare."""
    assert report["bit_exact"] is True
    assert report["killed_node"] == killed
    assert [(move["from_node"], move["to_node"]) for move in report["moved"]] == [
        (killed, "spare-0")
    ]
    assert report["moved"][0]["from_address"] != report["moved"][0]["to_address"]
    assert report["connections_kept"] > 0
    assert report["steps_repeated"] > 0
    assert report["snapshot"]["bytes"] > 100e6
    assert 0 < report["raw_dump_ms"] <= report["pause_ms"]
    assert not list(place.iterdir()), "the demo left files"


def test_the_whole_demo(place: Path) -> None:
    before = traces()
    report = play(place)
    check(report, place, killed="node-1")
    steps = report["snapshot"]["rank_steps"]
    assert set(steps) == {"0", "1", "2", "3"}
    assert set(steps.values()) == {report["snapshot"]["step"]}
    assert report["snapshot"]["step"] > 40
    assert traces() == before


def test_the_node_that_others_rendezvous_at_is_lost(place: Path) -> None:
    check(play(place, "--kill", "node-0", "--epochs", "24"), place, killed="node-0")


def test_ranks_frozen_wherever_they_are(place: Path) -> None:
    report = play(place, "--cut", "freeze", "--epochs", "24")
    check(report, place, killed="node-1")
    assert report["cut"] == "freeze"


@pytest.mark.parametrize(
    ("at", "number"),
    [
        ("nodes on one bridge", signal.SIGINT),
        ("PERSISTING", signal.SIGTERM),
        ("RESTORING", signal.SIGINT),
        ("undisturbed", signal.SIGINT),
    ],
)
def test_interrupted_it_leaves_nothing(place: Path, at: str, number: int) -> None:
    before = traces()
    run = start(place, "--checkpoint-at", "10", "--ranks-per-node", "1", "--epochs", "15")
    said_until(run, at)
    began = time.monotonic()
    run.send_signal(number)
    _, err = run.communicate(timeout=ENDS_S_MAX)
    assert time.monotonic() - began < ENDS_S_MAX
    assert run.returncode == 130, err[-4000:]
    assert not list(place.iterdir()), "the demo left files"
    assert traces() == before
