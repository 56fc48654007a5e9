"""What the core is told about the health of GPUs; see `events`."""

from __future__ import annotations

from dataclasses import dataclass

from coordinator.core.events import Event
from coordinator.core.health_records import GpuTrouble


@dataclass(frozen=True)
class GpuTroubleTold(Event):
    """All trouble that a node's GPUs have had since they were reset; takes the place of older."""

    node: str
    troubles: tuple[GpuTrouble, ...]
