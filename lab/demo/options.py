"""What the demo can be told."""

from __future__ import annotations

from dataclasses import dataclass

from coordinator.core.errors import BadRequest
from coordinator.core.model import Cut

JOB = "digits"


@dataclass(frozen=True)
class DemoOptions:
    """The options of `allstop demo`; counts are at least 1 (spares: 0)."""

    nodes: int = 2
    ranks_per_node: int = 2
    spares: int = 1
    checkpoint_at: int = 40  # step
    train_on: int = 30  # steps between the snapshot and the loss of a node
    kill: str = ""  # node; empty: the last busy one
    cut: Cut = Cut.STEP
    keep: bool = False
    epochs: int = 30
    batch_size: int = 16  # per rank
    loader_workers: int = 1  # per rank
    own_trees: bool = False  # every rank is a worker of its own, without torchrun

    def __post_init__(self) -> None:
        if self.nodes < 1 or self.ranks_per_node < 1 or self.spares < 0 or self.checkpoint_at < 1:
            raise BadRequest("the demo needs a node, a rank and a step", advice="see --help")
        if self.killed not in self.busy:
            raise BadRequest(
                f"there is no busy node {self.kill}", advice=f"--kill one of {', '.join(self.busy)}"
            )

    @property
    def busy(self) -> tuple[str, ...]:
        """Names of the nodes that train."""
        return tuple(f"node-{index}" for index in range(self.nodes))

    @property
    def spare(self) -> tuple[str, ...]:
        """Names of the nodes that wait."""
        return tuple(f"spare-{index}" for index in range(self.spares))

    @property
    def killed(self) -> str:
        """The node that will be lost."""
        return self.kill or self.busy[-1]

    @property
    def world_size(self) -> int:
        """Ranks of the job."""
        return self.nodes * self.ranks_per_node
