"""`make compose-demo` interrupted: containers, and an engine that it started itself, are gone."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from deploy.containers.engine import CGROUPS, GROUP, HOME
from tests.support.interrupting import said_until

pytestmark = [
    pytest.mark.root,
    pytest.mark.torch,
    pytest.mark.slow,
    pytest.mark.timeout(1500),  # alone it builds the images
]

ENDS_S_MAX = 90.0
SETTINGS = ("net/ipv4/ip_forward", "net/bridge/bridge-nf-call-iptables")


def machine() -> dict[str, Any]:
    """What an engine could leave behind, or change, as this machine shows it now."""
    settings = [Path("/proc/sys", name) for name in SETTINGS]
    return {
        "links": sorted(path.name for path in Path("/sys/class/net").iterdir()),
        "mounts": Path("/proc/self/mounts").read_text(),
        "rules": subprocess.check_output(["nft", "list", "ruleset"], text=True),
        "settings": [path.read_text() for path in settings if path.exists()],
        "groups": sorted(map(str, CGROUPS.glob(f"**/{GROUP}"))),
        "processes": engines(),
    }


def engines() -> list[str]:
    """Processes that name this checkout's engine."""
    found = []
    for pid in (each for each in Path("/proc").iterdir() if each.name.isdecimal()):
        try:
            line = (pid / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue
        if str(HOME) in line:
            found.append(line)
    return found


@pytest.mark.parametrize(
    ("at", "number"), [("docker compose up", signal.SIGTERM), ("job is starting", signal.SIGINT)]
)
def test_interrupted_it_leaves_nothing(at: str, number: int) -> None:
    before = machine()
    run = subprocess.Popen(
        [sys.executable, "-m", "deploy.containers", "--ranks-per-node", "1"],
        env=os.environ,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    said_until(run, at)
    run.send_signal(number)
    _, err = run.communicate(timeout=ENDS_S_MAX)
    assert run.returncode == 130, err[-4000:]
    assert machine() == before
