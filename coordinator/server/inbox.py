"""The one queue of events before the core."""

from __future__ import annotations

import asyncio
from collections import deque

from coordinator.core.events import Event

INBOX_MAX = 8_192


class Inbox:
    """Events in the order they came, for one reader.

    `post` waits when the core is behind, which in the end slows the shim that posts too much.
    `tell` never waits: losses, answers of the store and requests are few, each bounded by what
    they are about, and may not stand behind a flood of reports.
    """

    def __init__(self, limit: int = INBOX_MAX) -> None:
        """`limit` is the length from which on `post` waits."""
        self._events: deque[Event] = deque()
        self._limit = limit
        self._arrived = asyncio.Event()
        self._room = asyncio.Event()
        self._room.set()

    def __len__(self) -> int:
        return len(self._events)

    def tell(self, event: Event) -> None:
        """Queue an event at once."""
        self._events.append(event)
        self._arrived.set()
        if len(self._events) >= self._limit:
            self._room.clear()

    async def post(self, event: Event) -> None:
        """Queue an event when there is room; order per caller is kept."""
        while len(self._events) >= self._limit:
            await self._room.wait()
        self.tell(event)

    async def take(self, at_most: int, timeout_s: float | None) -> list[Event]:
        """Wait for events and take some; an empty list when none came within `timeout_s`."""
        if not self._events:
            self._arrived.clear()
            try:
                async with asyncio.timeout(timeout_s):
                    await self._arrived.wait()
            except TimeoutError:
                return []
        taken = [self._events.popleft() for _ in range(min(at_most, len(self._events)))]
        if len(self._events) < self._limit:
            self._room.set()
        return taken
