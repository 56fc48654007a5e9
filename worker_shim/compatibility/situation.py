"""What rows are judged on: the versions and features of a node, or of a worker on it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from worker_shim.compatibility.features import Features, TreeFeature

Versioned = Literal["driver", "cuda", "nccl", "torch", "compute"]
OF_THE_NODE: tuple[Versioned, ...] = ("driver", "cuda", "compute")
OF_THE_TREE: tuple[Versioned, ...] = ("nccl", "torch")
VERSIONED = (*OF_THE_NODE, *OF_THE_TREE)


@dataclass(frozen=True)
class Situation:
    """A version may be there several times: of each kind of GPU, of each library that is mapped."""

    architecture: str
    versions: Mapping[Versioned, Sequence[str]] = field(default_factory=dict)
    features: Features = field(default_factory=dict)
    has_tree: bool = True  # False: a node alone; nothing is known of any worker

    @property
    def uses_gpu(self) -> bool:
        """True when a process of the worker has a GPU."""
        return TreeFeature.GPU in self.features

    def version(self, name: Versioned) -> str:
        """For sentences."""
        return ", ".join(self.versions.get(name, ())) or "unknown"
