"""How long a client goes round all addresses, and what it raises when nobody has answered well."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from coordinator.core.errors import AllstopError, NoLeader

PAUSE_S, PAUSE_MAX_S = 0.1, 1.0

Waiting = Callable[[AllstopError], None]


class Patience:
    """How long rounds over all addresses go on while somebody answers and nobody leads."""

    def __init__(self, patience_s: float, on_waiting: Waiting | None) -> None:
        self._loop = asyncio.get_running_loop()
        self._until = self._loop.time() + patience_s
        self._pause_s = PAUSE_S
        self._on_waiting = on_waiting

    async def pause(self, errors: list[AllstopError]) -> None:
        """Wait before the next round; raises the errors of this one when no other is worth it."""
        passing = [each for each in errors if isinstance(each, NoLeader) or not each.definite]
        if not passing or self._loop.time() >= self._until:
            raise summed_up(errors)
        if self._on_waiting is not None:
            self._on_waiting(passing[0])
            self._on_waiting = None
        await asyncio.sleep(self._pause_s)
        self._pause_s = min(PAUSE_MAX_S, self._pause_s * 2)


def summed_up(errors: list[AllstopError], telling: AllstopError | None = None) -> AllstopError:
    """The error to raise after all addresses were tried, with the others as its details.

    Where nothing else is `telling`: that nobody leads, else the last one.
    """
    leaderless = [error for error in errors if isinstance(error, NoLeader)]
    chosen = telling or (leaderless or errors)[-1]
    others = [str(error) for error in errors if error is not chosen]
    chosen.details = (*chosen.details, *others)
    return chosen
