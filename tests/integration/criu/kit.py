"""Real nodes for tests of the drivers: a shim in small inside every lab host.

    node = Node(lab.hosts["n0"], criu_path)
    root = node.call("launch", [sys.executable, …], "/run/allstop-disk/log")
    node.call("criu.dump", root, Path("…"), deadline_s=20)

What the driver raises there is raised here. `node.took_ms` is the time of the last call, measured
there. A node must be closed before its lab.
"""

from __future__ import annotations

import os
import pickle
import select
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from coordinator.core.errors import from_fields
from lab.host import DISK, Host

ROOT = Path(__file__).resolve().parents[3]
PROGRAMS = Path(__file__).with_name("programs")
CALL_DEADLINE_S = 60.0


class Node:
    """The owner's end of one small shim."""

    def __init__(self, host: Host, criu_path: str) -> None:
        self.host = host
        self.took_ms = 0.0
        self.files: Any = ()  # what `files.cut` answered, for the node that takes the worker
        self.times: dict[str, list[float]] = {}
        env = {**os.environ, "ALLSTOP_CRIU": criu_path, "PYTHONPATH": f"{ROOT}:{ROOT / 'proto'}"}
        self._shim = host.popen(
            [sys.executable, "-m", "tests.integration.criu.node"],
            env=env,
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )

    def call(self, path: str, *arguments: Any, **keywords: Any) -> Any:
        """Call a method there; raises what it raised, or AssertionError when no answer came."""
        assert self._shim.stdin is not None
        assert self._shim.stdout is not None
        pickle.dump((path, arguments, keywords), self._shim.stdin)
        self._shim.stdin.flush()
        ready, _, _ = select.select([self._shim.stdout], [], [], CALL_DEADLINE_S)
        assert ready, f"{self.host.name} did not answer {path} within {CALL_DEADLINE_S} s"
        done, value, self.took_ms = pickle.load(self._shim.stdout)
        self.times.setdefault(path, []).append(self.took_ms)
        if not done:
            raise from_fields(value)
        return value

    def close(self) -> None:
        """End the small shim; what it started stays until the host ends."""
        assert self._shim.stdin is not None
        self._shim.stdin.close()
        assert self._shim.stdout is not None
        self._shim.stdout.close()
        self._shim.wait(10)

    def here(self, there: str | Path) -> Path:
        """The owner's path of a file on the host's own disk."""
        return self.host.disk / Path(there).relative_to(DISK)


def until(true: Callable[[], bool], what: str, deadline_s: float = 20.0) -> None:
    """Poll for something that must come true."""
    end = time.monotonic() + deadline_s
    while not true():
        assert time.monotonic() < end, f"waited {deadline_s} s in vain for: {what}"
        time.sleep(0.005)


def lines(path: Path) -> list[str]:
    """A file's whole lines; none while it does not exist."""
    return path.read_text().splitlines() if path.exists() else []


def counted(path: Path) -> int:
    """The highest count that `programs/stream.py` noted."""
    numbers = [int(line.split()[0]) for line in lines(path) if line.split()[0].isdigit()]
    return max(numbers, default=0)
