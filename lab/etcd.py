"""An etcd cluster in a lab, one member a host: members may be killed and started again."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from coordinator.server.embedded import find_etcd
from lab.cluster import Lab

CLIENT_PORT, PEER_PORT = 2379, 2380
SOCKET = "client:1"  # etcd makes it in its working directory (see coordinator/server/embedded.py)


@dataclass
class EtcdCluster:
    """The members by the names of their hosts.

    Attributes:
        root: a directory that the lab's owner and every host see; each member's data lies below.
        members: hosts of the lab.
    """

    lab: Lab
    root: Path
    members: Sequence[str]
    processes: dict[str, subprocess.Popen[Any]] = field(default_factory=dict)

    @property
    def endpoints(self) -> tuple[str, ...]:
        """What a coordinator in the lab dials."""
        return tuple(f"http://{self._address(name)}:{CLIENT_PORT}" for name in self.members)

    @property
    def sockets(self) -> tuple[str, ...]:
        """What the lab's owner dials: it has no way into the lab's network."""
        return tuple(f"unix:{self.root / name / SOCKET}" for name in self.members)

    def start(self, name: str) -> None:
        """Start a member, or start it again on its data; returns at once."""
        directory = self.root / name
        directory.mkdir(parents=True, exist_ok=True)
        (directory / SOCKET).unlink(missing_ok=True)
        peers = {each: f"http://{self._address(each)}:{PEER_PORT}" for each in self.members}
        client = f"http://{self._address(name)}:{CLIENT_PORT}"
        arguments = [
            str(find_etcd()),
            f"--name={name}",
            f"--data-dir={directory / 'data'}",
            f"--listen-client-urls={client},unix://{SOCKET}",
            f"--advertise-client-urls={client}",
            f"--listen-peer-urls={peers[name]}",
            f"--initial-advertise-peer-urls={peers[name]}",
            f"--initial-cluster={','.join(f'{each}={url}' for each, url in peers.items())}",
            "--heartbeat-interval=200",
            "--election-timeout=2000",
            "--unsafe-no-fsync",  # only the process dies here, never the machine
            "--log-level=warn",
        ]
        with (directory / "log").open("ab") as log:
            self.processes[name] = self.lab.hosts[name].popen(
                arguments, cwd=directory, stdout=log, stderr=subprocess.STDOUT
            )

    def _address(self, name: str) -> str:
        return self.lab.hosts[name].address
