"""`allstop logs` of a real job: both workers, one that is away, one that came back elsewhere."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from coordinator.core.errors import LinkError
from lab import Lab
from lab.deployment import Deployment, allstop_python

pytestmark = [pytest.mark.root, pytest.mark.criu, pytest.mark.etcd, pytest.mark.slow]

TICKS = str(Path(__file__).with_name("programs") / "ticks.py")
WAIT_S = 60.0


class Asking:
    """The command line of an operator, and a follower of it."""

    def __init__(self, deployment: Deployment, root: Path) -> None:
        self.address = deployment.socket
        self.heard, self.told = root / "heard", root / "told"

    def line(self, *words: str) -> list[str]:
        return [*allstop_python("coordinator.cli.main"), *words, "--coordinator", self.address]

    def __call__(self, *words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(self.line(*words), capture_output=True, text=True, timeout=90)

    @contextmanager
    def following(self, *words: str) -> Iterator[subprocess.Popen[Any]]:
        with self.heard.open("wb") as out, self.told.open("wb") as err:
            process = subprocess.Popen(self.line(*words), stdout=out, stderr=err)
        try:
            yield process
        finally:
            process.kill()
            process.wait(10)

    def ticks(self, worker: int) -> list[int]:
        """The numbers that the follower has heard of one worker."""
        return ticks(self.heard.read_text(), worker)


def ticks(text: str, worker: int) -> list[int]:
    return [int(found) for found in re.findall(rf"^{worker} \| tick (\d+)$", text, re.MULTILINE)]


def until(what: str, look: Callable[[], Any]) -> Any:
    deadline = time.monotonic() + WAIT_S
    while not (found := look()):
        assert time.monotonic() < deadline, f"{what} did not come within {WAIT_S:g} s"
        time.sleep(0.05)
    return found


@pytest.mark.timeout(240)
def test_output_of_workers_wherever_they_are(
    make_lab: Callable[..., Lab], criu_path: str, tmp_path: Path
) -> None:
    lab = make_lab(["n0", "n1", "n2"])
    deployment = Deployment(lab, tmp_path / "shared", options=("--criu", criu_path))
    deployment.start_control_plane()
    for worker in (0, 1):
        argv = [sys.executable, TICKS]
        host = lab.hosts[f"n{worker}"]
        deployment.start_worker(host, "talk", workers=2, worker=worker, argv=argv)
    deployment.start_spare(lab.hosts["n2"])
    ask = Asking(deployment, tmp_path)
    until("the job", lambda: '"state": "running"' in ask("jobs", "-o", "json").stdout)

    ran = ask("logs", "talk")
    assert ran.returncode == 0, ran.stderr
    for worker in (0, 1):
        heard = ticks(ran.stdout, worker)
        assert heard == list(range(heard[0], heard[-1] + 1)), "stdout and stderr, in order"
    alone = ask("logs", "talk", "--worker", "1", "--lines", "2", "-o", "json")
    (output,) = json.loads(alone.stdout)["outputs"]
    assert (output["worker"], output["node"], len(output["lines"])) == (1, "n1", 2)
    mode = lab.hosts["n0"].run(["stat", "-c", "%a", "/run/allstop/talk/0/log"])
    assert mode.stdout.strip() in ("600", b"600")
    assert "tick 1\n" in deployment.log("n0").read_text(), "the shim still passes it on"

    with ask.following("logs", "talk", "--follow", "--lines", "0") as follower:
        until("new lines of both", lambda: ask.ticks(0) and ask.ticks(1))
        taken = ask("checkpoint", "talk", "--cut", "freeze", "-o", "json")
        assert taken.returncode == 0, taken.stderr
        lab.hosts["n1"].power_off()
        until("the loss in the follower", lambda: "n1 is lost" in ask.told.read_text())
        before = ask.ticks(1)

        away = ask("logs", "talk", "--lines", "3", "-o", "json")
        assert away.returncode == LinkError.exit_code
        told = json.loads(away.stdout)
        assert [each["worker"] for each in told["outputs"]] == [0]
        assert told["error"]["node"] == "n1"
        assert "n1 is lost" in told["error"]["what"]

        assert ask("restore", "talk").returncode == 0
        until("worker 1 on n2", lambda: len(ask.ticks(1)) > len(before) + 3)
        again = ask.ticks(1)[len(before) :]
        assert again[0] <= before[-1] + 1, "nothing that came after the cut is left out"
        assert again == list(range(again[0], again[-1] + 1))
        assert "on n2: it goes on where" in ask.told.read_text()
        moved = json.loads(ask("logs", "talk", "--worker", "1", "-o", "json").stdout)
        assert moved["outputs"][0]["node"] == "n2"

        follower.send_signal(signal.SIGINT)
        assert follower.wait(20) == 0
    assert "Traceback" not in ask.told.read_text()
