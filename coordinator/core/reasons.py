"""Why a node takes a worker of a snapshot or not, as plain values; see `model` and `planner`."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class NodeReasons:
    """Every reason why a node cannot take a worker."""

    node: str
    worker: int
    reasons: tuple[str, ...]


@dataclass(frozen=True)
class NodeFit:
    """A node that can take a worker: the chosen one, or one that costs more."""

    node: str
    worker: int
    chosen: bool
    why: str  # one sentence
