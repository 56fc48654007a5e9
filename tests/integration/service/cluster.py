"""Two machines that systemd runs, installed as docs/operating.md says; the ring is the job."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from lab import Lab
from tests.integration.service.machine import PYTHON, SHARED, SOURCE, Machine

JOB = "ring"
CONTROL = "unix:/var/lib/allstop/coordinator/allstop.sock"
COORDINATOR = """listen = ["{address}:7411"]
etcd = ["http://127.0.0.1:2379"]
insecure = true
http = ""
lease = "3s"
"""
SHIM = """coordinator = ["{leader}:7411"]
insecure = true
store = "{shared}/store"
address = "{address}"
criu = "{source}/.tools/bin/criu"
"""
ETCD = f"""[Service]
Type=notify
ExecStart={SOURCE}/.tools/bin/etcd --data-dir /srv/disk/etcd --unsafe-no-fsync --log-level warn
"""


class Cluster:
    """Machine n0 has etcd, the coordinator and worker 0, n1 has worker 1, n2 is a spare."""

    def __init__(self, lab: Lab, root: Path, rounds: int) -> None:
        self.shared = root / "shared"
        self.machines = {
            name: Machine(host, root / name, self.shared) for name, host in lab.hosts.items()
        }
        self.first = self.machines["n0"]
        leader = self.first.host.address
        hosts = ",".join(lab.hosts[name].address for name in ("n0", "n1"))
        self.first.unit("etcd.service", ETCD)
        self.first.config("coordinator.toml", COORDINATOR.format(address=leader))
        for worker, machine in enumerate(self.machines.values()):
            address = machine.host.address
            machine.config(
                "shim.toml",
                SHIM.format(leader=leader, address=address, shared=SHARED, source=SOURCE),
            )
            machine.config(
                f"{JOB}.env", f"ALLSTOP_JOB={JOB}\nALLSTOP_WORKERS=2\nALLSTOP_WORKER={worker}\n"
            )
            program = f"{PYTHON} {SOURCE}/examples/tcp_ring.py --hosts {hosts} --node {worker}"
            more = f"--rounds {rounds} --log-every 10 --result {SHARED}/ring.json"
            machine.config(f"{JOB}.command", f"#!/bin/sh\nexec {program} {more}\n", 0o755)

    def start(self) -> None:
        """Boot all machines."""
        for machine in self.machines.values():
            machine.start()

    def close(self) -> None:
        """Pull all plugs."""
        for machine in self.machines.values():
            machine.close()

    def ask(self, verb: str, *argv: str, check: bool = True) -> Any:
        """An operator's question on the coordinator's machine; None where it is refused."""
        line = ["allstop", verb, *argv, "-o", "json", "--coordinator", CONTROL]
        done = self.first.run(*line, timeout_s=90.0, check=check)
        return json.loads(done.stdout) if done.returncode == 0 else None

    def start_job(self) -> None:
        """The control plane, a spare on n2, the ring on n0 and n1; returns when it is a job."""
        worker = f"allstop-worker@{JOB}"
        self.first.systemctl("start", "etcd", "allstop-coordinator")
        self.machines["n2"].systemctl("start", "allstop-shim")
        for name in ("n0", "n1"):
            self.machines[name].systemctl("start", worker)
        self.wait_for_node("n2", "attached")
        self.first.wait("the job", lambda: self.job_state() == "running")

    def job_state(self) -> str:
        """What the coordinator says of the job; empty when it does not know it."""
        views = self.ask("jobs", check=False) or []
        return next((view["state"] for view in views if view["job"]["job"] == JOB), "")

    def goes_on(self) -> None:
        """The ring finishes further rounds."""
        before = self.rounds()
        self.first.wait(f"rounds after {before}", lambda: self.rounds() > before)

    def wait_for_node(self, name: str, state: str) -> None:
        """Wait until the coordinator says so of a node."""
        self.first.wait(f"{name} {state}", lambda: self.node(name) == state)

    def node(self, name: str) -> str:
        """What the coordinator says of a node; empty when it does not know it."""
        views = self.ask("nodes", check=False) or []
        return next((view["state"] for view in views if view["facts"]["node"] == name), "")

    def rounds(self) -> int:
        """How many lines of progress the ring's first rank has printed, restored ones again."""
        up = [machine for machine in self.machines.values() if machine.running]
        return sum(machine.journal("allstop-*").count("\nround ") for machine in up)
