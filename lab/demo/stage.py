"""Where the demo plays: a lab of namespaces here, containers elsewhere; the story is the same."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from coordinator.link.security import NO_TLS, Tls
from lab.cluster import Lab
from lab.demo.options import JOB, DemoOptions
from lab.demo.training import environment, python, read_result, run_undisturbed, torchrun
from lab.deployment import Deployment


class Stage(Protocol):
    """What the story needs of the place it is played in."""

    @property
    def addresses(self) -> Mapping[str, str]:
        """Of every node that is up, by its name."""

    @property
    def about(self) -> str:
        """The place in a few words, such as `3 nodes on one bridge`."""

    @property
    def coordinators(self) -> Sequence[str]:
        """What an operator dials."""

    @property
    def tls(self) -> Tls:
        """An operator's certificate, where TCP is dialled."""

    def start(self) -> None:
        """Control plane, spare shims, and torchrun below a shim on every busy node."""

    def power_off(self, node: str) -> None:
        """Pull a node's plug: shim, ranks and network are gone when this returns."""

    def established(self, node: str) -> str:
        """What `ss -Htn state established` prints on a node."""

    def ended_too_early(self) -> str:
        """What has ended that should run, in a few words; empty: nothing."""

    def result(self) -> dict[str, Any] | None:
        """What rank 0 wrote at its end; None: nothing yet."""

    def undisturbed(self) -> dict[str, Any]:
        """The same command without allstop, blocking: what its rank 0 wrote."""

    def last_words(self) -> tuple[str, ...]:
        """The end of every log of allstop's, for an error."""


class LabStage:
    """A lab of namespaces on this machine."""

    def __init__(self, options: DemoOptions, lab: Lab, root: Path) -> None:
        self.options = options
        self.lab = lab
        self.root = root
        self.deployment = Deployment(lab, root)
        self.tls = NO_TLS

    @property
    def addresses(self) -> Mapping[str, str]:
        return {host.name: host.address for host in self.lab.hosts.values()}

    @property
    def about(self) -> str:
        return f"{len(self.lab.hosts)} nodes on one bridge"

    @property
    def coordinators(self) -> Sequence[str]:
        return [self.deployment.socket]

    @property
    def _result(self) -> Path:
        return self.root / "result.json"

    def start(self) -> None:
        options, deployment = self.options, self.deployment
        deployment.start_control_plane()
        for name in options.spare:
            deployment.start_spare(self.lab.hosts[name])
        hosts = [self.lab.hosts[name] for name in options.busy]
        for index, name in enumerate(options.busy):
            if options.own_trees:
                deployment.start_ranks(
                    self.lab.hosts[name],
                    JOB,
                    ranks=options.ranks_per_node,
                    hosts=hosts,
                    argv=python(options, self._result),
                    env=environment(),
                )
                continue
            deployment.start_worker(
                self.lab.hosts[name],
                JOB,
                workers=options.nodes,
                worker=index,
                argv=torchrun(options, self.lab, index, self._result),
                env=environment(),
            )

    def power_off(self, node: str) -> None:
        self.lab.hosts[node].power_off()
        del self.deployment.shims[node]

    def established(self, node: str) -> str:
        return self.lab.hosts[node].run(["ss", "-Htn", "state", "established"]).stdout

    def ended_too_early(self) -> str:
        processes = {"control": self.deployment.plane, **self.deployment.shims}
        for name, process in processes.items():
            if process is not None and process.poll() is not None:
                return f"{name} ended with {process.returncode}"
        return ""

    def result(self) -> dict[str, Any] | None:
        return read_result(self._result) if self._result.exists() else None

    def undisturbed(self) -> dict[str, Any]:
        return run_undisturbed(self.options, self.root)

    def last_words(self) -> tuple[str, ...]:
        words = []
        for log in sorted((self.root / "logs").glob("*.log")):
            lines = log.read_text(errors="replace").splitlines()[-12:]
            words += [f"--- {log.stem}", *lines]
        return tuple(words)
