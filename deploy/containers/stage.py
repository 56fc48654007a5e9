"""The demo's stage made of containers."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from coordinator.core.errors import SetupError
from coordinator.link.security import NO_TLS
from deploy.containers.cluster import CONTROL, Cluster
from lab.demo.options import DemoOptions

LOOK_EVERY_S = 3.0  # each look is two commands
UNDISTURBED_S = 600.0
POLL_S = 1.0
RESULT, UNDISTURBED_RESULT = "/results/result.json", "/results/undisturbed.json"


def variables(options: DemoOptions) -> dict[str, str]:
    """The options in the words of `.env`; ports are any that are free."""
    return {
        "RANKS_PER_NODE": str(options.ranks_per_node),
        "EPOCHS": str(options.epochs),
        "BATCH_SIZE": str(options.batch_size),
        "LOADER_WORKERS": str(options.loader_workers),
        "COORDINATOR_0_PORT": "0",
        "COORDINATOR_1_PORT": "0",
    }


class ContainerStage:
    """A cluster that `start` brings up; `directory` is private and gets an operator's key."""

    def __init__(self, options: DemoOptions, cluster: Cluster, directory: Path) -> None:
        self.options = options
        self.cluster = cluster
        self.tls = NO_TLS
        self._directory = directory
        self.coordinators: Sequence[str] = ()
        self._nodes = [*options.busy, *options.spare]
        self._killed: set[str] = set()
        self._looked = 0.0

    @property
    def addresses(self) -> Mapping[str, str]:
        return {name: self.cluster.address(name) for name in self._nodes}

    @property
    def about(self) -> str:
        return f"{len(self._nodes)} nodes, 2 coordinators, 3 etcd and a sink of traces"

    def start(self) -> None:
        self.cluster.up()
        self.tls = self.cluster.operator(self._directory)
        self.coordinators = self.cluster.coordinators

    def power_off(self, node: str) -> None:
        self._killed.add(node)
        self.cluster.docker("kill", self.cluster.name(node))

    def established(self, node: str) -> str:
        return self.cluster.execute(node, "ss", "-Htn", "state", "established")

    def ended_too_early(self) -> str:
        if time.monotonic() - self._looked < LOOK_EVERY_S:
            return ""
        self._looked = time.monotonic()
        states = self.cluster.states()
        for name in (*CONTROL, *self._nodes):
            state, code = states.get(name, ("gone", 0))
            if name not in self._killed and state != "running":
                return f"{name} is {state}, exit code {code}"
        return ""

    def result(self) -> dict[str, Any] | None:
        return self._read(RESULT)

    def undisturbed(self) -> dict[str, Any]:
        cluster, names = self.cluster, [f"plain-{index}" for index in range(self.options.nodes)]
        cluster.up(*names, wait=False)
        deadline = time.monotonic() + UNDISTURBED_S
        while time.monotonic() < deadline:
            states = cluster.states()
            ended = [code for state, code in map(states.__getitem__, names) if state == "exited"]
            if any(ended):
                break
            if len(ended) == len(names):
                return self._read(UNDISTURBED_RESULT) or {}
            time.sleep(POLL_S)
        words = tuple(cluster.logs(names).splitlines())
        raise SetupError("the undisturbed run failed", details=words)

    def last_words(self) -> tuple[str, ...]:
        return tuple(self.cluster.logs().splitlines())

    def _read(self, path: str) -> dict[str, Any] | None:
        text = self.cluster.file(self.options.spare[0], path)
        found: dict[str, Any] | None = json.loads(text) if text else None
        return found
