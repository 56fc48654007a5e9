"""What the operator service needs of the present leadership, in one value."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from coordinator.api.watchers import Watchers
from coordinator.core import events
from coordinator.core.control import Control
from coordinator.link.hub import Hub
from coordinator.store.port import Store


async def at_once(job: str) -> None:
    """Nobody is waited for."""


def always() -> bool:
    """Nobody is on the way."""
    return True


@dataclass(frozen=True)
class Desk:
    """The leader's side of the operator service; only its own loop may touch it."""

    control: Control
    store: Store
    hub: Hub
    watchers: Watchers
    tell: Callable[[events.Event], None]
    unix: Callable[[], float] = time.time
    gathered: Callable[[str], Awaitable[None]] = at_once  # a new leader's wait for a job's nodes
    settled: Callable[[], bool] = always  # whether nodes that are not here were given time to come
