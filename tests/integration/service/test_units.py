"""The units of deploy/systemd under a real systemd: checked, started, killed and stopped."""

from __future__ import annotations

import json
import time
from collections.abc import Callable

import pytest

from tests.integration.examples.test_ring import undisturbed_digest
from tests.integration.service.cluster import JOB, Cluster
from tests.integration.service.machine import Machine

ROUNDS = 300
ENDLESS = 1_000_000
EXPOSURE_MAX = 15  # tenths of what `systemd-analyze security` says; 100 is no sandbox at all
UNITS = ("allstop-coordinator.service", "allstop-shim.service", "allstop-worker@.service")
WORKER = f"allstop-worker@{JOB}.service"

pytestmark = [pytest.mark.root, pytest.mark.criu, pytest.mark.etcd, pytest.mark.slow]


def stop(machine: Machine, unit: str, within_s: float) -> None:
    """`systemctl stop` ends a unit orderly: in time, by SIGTERM alone, with no process left."""
    began = time.monotonic()
    machine.systemctl("stop", unit)
    assert time.monotonic() - began < within_s, machine.journal(unit)
    assert machine.show(unit, "Result") == "success", machine.journal(unit)
    assert machine.show(unit, "ActiveState") == "inactive"


def kill(machine: Machine, unit: str) -> None:
    """SIGKILL for the unit's main process alone."""
    machine.systemctl("kill", "--kill-whom=main", "--signal=KILL", unit)


def ranks(machine: Machine) -> list[str]:
    """The processes of the ring in a machine, whatever PID namespace they are in."""
    return machine.run("pgrep", "-f", "tcp_ring.py --hosts", check=False).stdout.split()


def status(machine: Machine, unit: str) -> dict[str, str]:
    """/proc/PID/status of a unit's main process."""
    text = machine.run("cat", f"/proc/{machine.show(unit, 'MainPID')}/status").stdout
    return dict(line.split(":\t", 1) for line in text.splitlines() if ":\t" in line)


@pytest.mark.timeout(240)
def test_a_job_of_two_units_moves_to_a_third(cluster: Callable[[int], Cluster]) -> None:
    three = cluster(ROUNDS)
    n0, n1, n2 = three.machines.values()
    checked = n0.run("systemd-analyze", "verify", "--man=no", *UNITS, check=False)
    assert (checked.returncode, checked.stderr) == (0, "")
    bound = f"--threshold={EXPOSURE_MAX}"
    security = ("systemd-analyze", "security", "--no-pager", "--offline=yes", bound)
    rated = n0.run(*security, f"/etc/systemd/system/{UNITS[0]}", check=False)
    assert rated.returncode == 0, rated.stdout[-1000:]

    three.start_job()
    coordinator = status(n0, UNITS[0])
    user = n0.run("id", "-u", "allstop").stdout.strip()
    assert coordinator["Uid"].split() == [user] * 4
    assert (coordinator["NoNewPrivs"], coordinator["Seccomp"]) == ("1", "2")
    assert int(coordinator["CapBnd"], 16) == 0
    assert n0.run("stat", "-c", "%U %a", "/var/lib/allstop/coordinator").stdout == "allstop 700\n"
    assert n0.run("stat", "-c", "%U", "/var/lib/allstop", "/var/lib/allstop/node").stdout == (
        "root\nroot\n"
    )

    three.goes_on()
    taken = three.ask("checkpoint", JOB, "--cut", "freeze")["snapshot"]
    n1.close()
    three.wait_for_node("n1", "lost")
    restored = three.ask("restore", JOB)["restore"]
    assert restored["snapshot"] == taken["snapshot"]
    assert [place["to_node"] for place in restored["plan"]["placements"]] == ["n0", "n2"]
    result = three.shared / "ring.json"
    n0.wait("the end of the ring", lambda: result.exists() and result.read_text().endswith("\n"))
    assert json.loads(result.read_text())["digest"] == undisturbed_digest(ROUNDS)

    n0.wait("the end of the unit", lambda: n0.show(WORKER, "ActiveState") == "inactive")
    assert n0.show(WORKER, "Result") == "success"
    stop(n2, "allstop-shim", 20)
    stop(n0, "allstop-coordinator", 20)


@pytest.mark.timeout(240)
def test_what_is_killed_comes_back_and_what_is_stopped_ends(
    cluster: Callable[[int], Cluster],
) -> None:
    three = cluster(ENDLESS)
    n0, n1, n2 = three.machines.values()
    three.start_job()
    three.goes_on()
    three.ask("checkpoint", JOB, "--cut", "freeze")

    kill(n1, WORKER)  # takes its worker with it; the node is a spare one from then on
    n1.wait("the spare shim of n1", lambda: n1.show("allstop-shim", "ActiveState") == "active")
    assert n1.show(WORKER, "ActiveState") == "failed"
    assert ranks(n1) == []
    three.wait_for_node("n1", "attached")
    three.ask("restore", JOB)
    three.goes_on()

    holder = next(machine for machine in (n1, n2) if ranks(machine))
    kill(holder, "allstop-shim")
    holder.wait("a new shim", lambda: holder.show("allstop-shim", "NRestarts") == "1")
    assert ranks(holder) == []
    kill(n0, "allstop-coordinator")
    n0.wait("a new coordinator", lambda: n0.show("allstop-coordinator", "NRestarts") == "1")
    three.wait_for_node(holder.host.name, "attached")
    three.ask("restore", JOB)
    three.goes_on()

    holder = next(machine for machine in (n1, n2) if ranks(machine))
    stop(n0, "allstop-coordinator", 30)
    stop(holder, "allstop-shim", 60)
    stop(n0, WORKER, 60)
    assert ranks(holder) == ranks(n0) == []
