"""allstop itself in a lab: a control plane and shims, started by the commands a user types.

Used by the demo, the integration tests and the bench, so that all three run what users run.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from lab.cluster import Lab
from lab.host import DISK, Host

PORT = 7411
STAGING = Path("/run/allstop-staging")  # memory: the shorter the dump, the shorter the stop
STOP_TIMEOUT_S = 20.0


@dataclass
class Deployment:
    """allstop's processes in one lab.

    Attributes:
        lab: the started lab.
        root: a directory that every host sees at the same path; the image store lies below it.
        options: further options of every `allstop shim`, such as ("--criu", PATH).
        coordinators: what the shims dial; empty: the control host.
        env: further variables of every process; in a lab TCP may be plain.
    """

    lab: Lab
    root: Path
    options: Sequence[str] = ()
    coordinators: Sequence[str] = ()
    env: Mapping[str, str] = field(default_factory=lambda: {"ALLSTOP_INSECURE": "1"})
    plane: subprocess.Popen[Any] | None = None
    replicas: dict[str, subprocess.Popen[Any]] = field(default_factory=dict)
    shims: dict[str, subprocess.Popen[Any]] = field(default_factory=dict)

    @property
    def state(self) -> Path:
        """Where the control plane keeps its data and its socket."""
        return self.root / "control"

    @property
    def store(self) -> Path:
        """The image store that all hosts share."""
        return self.root / "store"

    @property
    def socket(self) -> str:
        """The coordinator's address for an operator on this machine."""
        return f"unix:{self.state / 'allstop.sock'}"

    def log(self, name: str) -> Path:
        """What one of allstop's processes printed."""
        return self.root / "logs" / f"{name}.log"

    def start_control_plane(self, *options: str) -> None:
        """Start embedded etcd and a coordinator on the control host; returns at once."""
        for directory in (self.state, self.store, self.root / "logs"):
            directory.mkdir(parents=True, exist_ok=True)
        listen = f"{self.lab.control.address}:{PORT}"
        self.plane = self._popen(
            self.lab.control,
            "control",
            [*allstop("up"), "--listen", listen, "--state-dir", str(self.state), *options],
        )

    def start_replica(self, host: Host, etcd: Sequence[str], *options: str) -> None:
        """Start one coordinator of several on a host of its own, over an etcd that is there."""
        for directory in (self.store, self.root / "logs"):
            directory.mkdir(parents=True, exist_ok=True)
        endpoints = [word for url in etcd for word in ("--etcd", url)]
        place = ["--name", host.name, "--state-dir", str(self.state / host.name)]
        listen = ["--listen", f"{host.address}:{PORT}"]
        self.replicas[host.name] = self._popen(
            host, host.name, [*allstop("coordinator"), *listen, *place, *endpoints, *options]
        )

    def replica_socket(self, name: str) -> str:
        """A replica's address for an operator on this machine."""
        return f"unix:{self.state / name / 'allstop.sock'}"

    def stop_control_plane(self) -> None:
        """End it as Ctrl-C would, and wait."""
        if self.plane is not None:
            self.plane.terminate()
            self.plane.wait(STOP_TIMEOUT_S)
            self.plane = None

    def start_spare(self, host: Host, env: Mapping[str, str] | None = None) -> None:
        """A shim without a worker."""
        self.shims[host.name] = self._popen(
            host, host.name, [*allstop("shim"), *self._shim_options(host)], env=env
        )

    def start_worker(
        self,
        host: Host,
        job: str,
        *,
        workers: int,
        worker: int,
        argv: Sequence[str],
        env: Mapping[str, str] | None = None,
    ) -> None:
        """A shim that starts one worker of a job."""
        place = ["--job", job, "--workers", str(workers), "--worker", str(worker)]
        self.shims[host.name] = self._popen(
            host,
            host.name,
            [*allstop("shim"), *self._shim_options(host), "run", *place, "--", *argv],
            env=env,
        )

    def start_ranks(
        self,
        host: Host,
        job: str,
        *,
        ranks: int,
        argv: Sequence[str],
        hosts: Sequence[Host] = (),
        options: Sequence[str] = (),
        env: Mapping[str, str] | None = None,
    ) -> None:
        """A shim with a worker for each of its `ranks`; `hosts` are all nodes of the job."""
        nodes = [each.name for each in hosts or (host,)]
        place = ["--job", job, "--ranks", str(ranks), "--nnodes", str(len(nodes))]
        place += ["--node-rank", str(nodes.index(host.name)), *options]
        if hosts:
            place += ["--master-addr", hosts[0].address]
        self.shims[host.name] = self._popen(
            host,
            host.name,
            [*allstop("shim"), *self._shim_options(host), "run", *place, "--", *argv],
            env=env,
        )

    def _shim_options(self, host: Host) -> list[str]:
        coordinators = self.coordinators or (f"{self.lab.control.address}:{PORT}",)
        return [
            *("--node", host.name, "--address", host.address),
            *(word for address in coordinators for word in ("--coordinator", address)),
            *("--store", str(self.store), "--staging", str(STAGING)),
            *("--node-state", str(DISK / "node")),
            *self.options,
        ]

    def _popen(
        self, host: Host, name: str, argv: Sequence[str], env: Mapping[str, str] | None = None
    ) -> subprocess.Popen[Any]:
        with self.log(name).open("ab") as log:
            return host.popen(
                argv,
                env={**os.environ, **self.env, **(env or {})},
                stdout=log,
                stderr=subprocess.STDOUT,
            )


def allstop(verb: str) -> list[str]:
    """The command line of one of allstop's verbs, by this Python."""
    return [*allstop_python("coordinator.cli.main"), verb]


def allstop_python(module: str) -> list[str]:
    """A module run by this Python."""
    return [sys.executable, "-m", module]
