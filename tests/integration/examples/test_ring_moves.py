"""cut = freeze: the token ring is checkpointed, loses a node, and goes on elsewhere, bit by bit.

Everything is started and asked as a user does it, by the `allstop` command.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from lab import Lab
from lab.deployment import Deployment, allstop

from .test_ring import SCRIPT, undisturbed_digest

ROUNDS = 600
WAIT_S = 120.0
RUN_TIMEOUT_S = 120

pytestmark = [pytest.mark.root, pytest.mark.criu, pytest.mark.etcd, pytest.mark.slow]


@pytest.fixture
def deployment(make_lab: Callable[..., Lab], criu_path: str, tmp_path: Path) -> Deployment:
    """The ring on n0 and n1, n2 spare."""
    lab = make_lab(["n0", "n1", "n2"])
    made = Deployment(lab, tmp_path / "shared", options=("--criu", criu_path))
    made.start_control_plane()
    made.start_spare(lab.hosts["n2"])
    hosts = f"{lab.hosts['n0'].address},{lab.hosts['n1'].address}"
    for node in range(2):
        argv = [sys.executable, str(SCRIPT), "--hosts", hosts, "--node", str(node)]
        argv += ["--rounds", str(ROUNDS), "--log-every", "20"]
        argv += ["--result", str(tmp_path / "shared" / "ring.json")]
        host = lab.hosts[f"n{node}"]
        made.start_worker(host, "ring", workers=2, worker=node, argv=argv)
    return made


def ask(deployment: Deployment, verb: str, *arguments: str, code: int = 0) -> Any:
    """Run a verb with `-o json` and return what it printed."""
    done = subprocess.run(
        [*allstop(verb), *arguments, "-o", "json", "--coordinator", deployment.socket],
        capture_output=True,
        text=True,
        timeout=RUN_TIMEOUT_S,
        check=False,
    )
    logs = {name: deployment.log(name).read_text()[-2000:] for name in ("control", "n0", "n2")}
    assert done.returncode == code, (done.stdout, done.stderr, logs)
    return json.loads(done.stdout)


def wait_until(what: str, true: Callable[[], bool]) -> None:
    """Look again and again, for WAIT_S at most."""
    deadline = time.monotonic() + WAIT_S
    while not true():
        assert time.monotonic() < deadline, f"{what} did not come within {WAIT_S:g} s"
        time.sleep(0.1)


@pytest.mark.timeout(300)
def test_a_frozen_ring_goes_on_with_another_address(deployment: Deployment, tmp_path: Path) -> None:
    wait_until("round 20", lambda: "round 20 " in deployment.log("n0").read_text())
    wait_until("the socket", lambda: Path(deployment.socket.removeprefix("unix:")).exists())
    for node in ("n0", "n1"):
        log = deployment.log(node)
        wait_until(f"the run on {node}", lambda log=log: "taken in" in log.read_text())  # type: ignore[misc]

    refused = ask(deployment, "checkpoint", "ring", code=3)["error"]
    assert refused["job"] == "ring"
    assert "--cut freeze" in refused["advice"]

    taken = ask(deployment, "checkpoint", "ring", "--cut", "freeze")["snapshot"]
    assert [worker["node"] for worker in taken["workers"]] == ["n0", "n1"]
    assert taken["cut"] == "freeze"
    lost = deployment.lab.hosts["n1"]
    remote = [one["remote_address"] for one in taken["workers"][0]["connections"]]
    assert remote.count(lost.address) == 2  # from the ring's last rank, and to rank 2

    lost.power_off()
    wait_until(
        "the loss of n1",
        lambda: (
            {view["facts"]["node"]: view["state"] for view in ask(deployment, "nodes")}["n1"]
            == "lost"
        ),
    )
    restored = ask(deployment, "restore", "ring")["restore"]
    spare = deployment.lab.hosts["n2"]
    assert restored["snapshot"] == taken["snapshot"]
    assert restored["plan"]["addresses"] == [{"old": lost.address, "new": spare.address}]
    assert [place["to_node"] for place in restored["plan"]["placements"]] == ["n0", "n2"]

    result = tmp_path / "shared" / "ring.json"
    wait_until("the end of the ring", result.exists)
    wait_until("all of the result", lambda: result.read_text().endswith("\n"))
    assert json.loads(result.read_text())["digest"] == undisturbed_digest(ROUNDS)
