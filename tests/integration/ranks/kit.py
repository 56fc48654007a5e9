"""The light job of `badluck`, each of its 2 x 2 ranks a worker of its own."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass

from coordinator.core.model import Endpoint, WorkerRecord
from tests.integration.badluck.kit import JOB, NODES, PAIR, RANKS_PER_NODE, Pair


@dataclass
class Trees(Pair):
    """Four workers on two nodes; rank and worker have the same number."""

    names: Sequence[str] = NODES  # of the nodes that have ranks
    loopback: bool = False  # the ranks meet on 127.0.0.1

    def start_worker(self, node: str) -> None:
        """The ranks of that node, below one shim."""
        if node not in self.names:
            return
        hosts = [self.host(name) for name in self.names]
        addresses = "127.0.0.1" if self.loopback else ",".join(host.address for host in hosts)
        self.deployment.options = ("--criu", str(self.criu_of(node)))
        self.deployment.start_ranks(
            self.host(node),
            JOB,
            ranks=RANKS_PER_NODE * len(NODES) // len(self.names),
            hosts=() if self.loopback else hosts,
            argv=[sys.executable, PAIR, "rank", str(self.shared), addresses],
            env=self.env,
        )

    async def fit(self) -> bool:
        """As for a pair; a shim of ranks that were restored elsewhere has ended."""
        return self.deployment.shims.keys() >= set(NODES) and await super().fit()


def beside(records: Sequence[WorkerRecord], worker: int) -> list[Endpoint]:
    """The worker's connections to others that were on its node."""
    mine = records[worker]
    near = [each for each in records if each.node == mine.node and each is not mine]
    theirs = {end for each in near for end in each.connections}
    return [
        end
        for end in mine.connections
        if Endpoint(end.remote_address, end.remote_port, end.local_address, end.local_port)
        in theirs
    ]
