"""The one queue of events before the core."""

from __future__ import annotations

import asyncio
from collections import deque

from coordinator.core.events import Event

INBOX_MAX = 8_192


class Inbox:
    """Events in the order they came, for one reader.

    `tell` never waits. While `behind`, whoever reads streams of shims or of carriers reads no
    further, which in the end slows the shim that says too much; losses, answers of the store and
    requests are few, each bounded by what they are about.
    """

    def __init__(self, limit: int = INBOX_MAX) -> None:
        """`limit` is the length from which on it is behind."""
        self._events: deque[Event] = deque()
        self._limit = limit
        self._arrived = asyncio.Event()

    def __len__(self) -> int:
        return len(self._events)

    @property
    def behind(self) -> bool:
        """Whether more is waiting than should be."""
        return len(self._events) >= self._limit

    def tell(self, event: Event) -> None:
        """Queue an event at once."""
        self._events.append(event)
        self._arrived.set()

    async def take(self, at_most: int, timeout_s: float | None) -> list[Event]:
        """Wait for events and take some; an empty list when none came within `timeout_s`."""
        if not self._events:
            self._arrived.clear()
            try:
                async with asyncio.timeout(timeout_s):
                    await self._arrived.wait()
            except TimeoutError:
                return []
        return [self._events.popleft() for _ in range(min(at_most, len(self._events)))]
