"""The cluster of compose.yaml: up, down, and what is asked of it in between."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from coordinator.core.errors import SetupError
from coordinator.link.security import Tls
from deploy.containers.commands import run
from deploy.containers.images import COMPOSE

UP_S = 300.0
DOWN_S = 120.0
ASK_S = 30.0
CONTROL = ("etcd-0", "etcd-1", "etcd-2", "coordinator-0", "coordinator-1", "sink")


@dataclass(frozen=True)
class Cluster:
    """One project of Compose.

    Attributes:
        project: its name, which every container, network and volume of it begins with.
        env: how to reach the engine, and what replaces values of `.env`.
    """

    project: str
    env: Mapping[str, str] = field(default_factory=dict)

    def compose(self, *words: str, timeout_s: float = ASK_S, check: bool = True) -> str:
        """`docker compose` of this project; raises SetupError with its last words."""
        line = ["docker", "compose", "--project-name", self.project, *words]
        return run(line, timeout_s, env=self.env, cwd=COMPOSE, check=check)

    def docker(self, *words: str, timeout_s: float = ASK_S) -> str:
        """`docker`; raises SetupError with its last words."""
        return run(["docker", *words], timeout_s, env=self.env)

    def name(self, service: str) -> str:
        """The container of a service."""
        return f"{self.project}-{service}-1"

    def up(self, *services: str, wait: bool = True) -> None:
        """Start services, all without any named, and wait until they are healthy."""
        waiting = ["--wait"] if wait else []
        self.compose("up", "--detach", "--no-build", *waiting, *services, timeout_s=UP_S)

    def down(self) -> None:
        """Remove containers, network and volumes."""
        self.compose(
            *("--profile", "*", "down", "--volumes", "--remove-orphans", "--timeout", "1"),
            timeout_s=DOWN_S,
        )

    def states(self) -> dict[str, tuple[str, int]]:
        """State and exit code of every container, ended ones too, by its service."""
        project = f"label=com.docker.compose.project={self.project}"
        mine = self.docker("ps", "--all", "--quiet", "--no-trunc", "--filter", project).split()
        found = json.loads(self.docker("inspect", *mine)) if mine else []
        return {
            each["Config"]["Labels"]["com.docker.compose.service"]: (
                each["State"]["Status"],
                each["State"]["ExitCode"],
            )
            for each in found
        }

    def inspect(self, service: str) -> dict[str, Any]:
        """All that the engine knows of a container."""
        found: dict[str, Any] = json.loads(self.docker("inspect", self.name(service)))[0]
        return found

    def address(self, service: str) -> str:
        """Of a container that is up; empty for others."""
        networks = self.inspect(service)["NetworkSettings"]["Networks"].values()
        return next((str(network["IPAddress"]) for network in networks), "")

    def execute(self, service: str, *argv: str) -> str:
        """Run a command in a container."""
        return self.docker("exec", self.name(service), *argv)

    def file(self, service: str, path: str) -> str | None:
        """A file's text, also of a container that has ended; None when there is no such file."""
        with tempfile.TemporaryDirectory(prefix="allstop-cp-") as directory:
            try:
                self.docker("cp", f"{self.name(service)}:{path}", f"{directory}/file")
            except SetupError:
                return None
            return Path(directory, "file").read_text()

    def logs(self, services: Sequence[str] = (), lines: int = 12) -> str:
        """The end of what each container printed."""
        return self.compose("logs", "--no-color", "--tail", str(lines), *services, check=False)

    @property
    def coordinators(self) -> list[str]:
        """What an operator on this machine dials."""
        return [self.compose("port", name, "7411").strip() for name in CONTROL if "coord" in name]

    def operator(self, directory: Path) -> Tls:
        """Copy the operator's certificate into a private directory."""
        self.docker("cp", f"{self.name('certs')}:/certs/operator/.", str(directory))
        own = directory / "operator-compose.pem"
        return Tls(directory / "ca.pem", own, own.with_suffix(".key"))
