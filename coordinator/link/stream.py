"""One shim's stream seen from the coordinator: what is still to be sent, and how it ended."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator

from allstop.v1 import shim_pb2

from coordinator.core.errors import AllstopError, LinkError, Where

OUTGOING_MAX = 1_024


class ShimStream:
    """The outgoing half of one attached shim; everything here runs on the coordinator's loop.

    `session` is the shim process's own id; a shim that dials again keeps it, so two streams can
    share a session. The stream has ended as soon as `ending` is set, whatever gRPC still sends.
    """

    def __init__(self, node: str, session: str, *, outgoing_max: int = OUTGOING_MAX) -> None:
        """Nothing is sent before `messages` is iterated."""
        self.node = node
        self.session = session
        self.ending: AllstopError | None = None
        self.left = False  # the shim said Goodbye
        self._outgoing: deque[shim_pb2.CoordinatorMessage] = deque()
        self._outgoing_max = outgoing_max
        self._wake = asyncio.Event()

    @property
    def waiting(self) -> int:
        """How many messages have not been handed to gRPC yet."""
        return len(self._outgoing)

    def send(self, message: shim_pb2.CoordinatorMessage) -> bool:
        """Queue one message; False when the stream has ended or ends now because it is too slow."""
        if self.ending is not None:
            return False
        if len(self._outgoing) >= self._outgoing_max:
            self._outgoing.clear()
            self.end(
                LinkError(
                    f"the shim reads too slowly: {self._outgoing_max} messages were waiting for it",
                    where=Where(node=self.node),
                    definite=False,
                )
            )
            return False
        self._outgoing.append(message)
        self._wake.set()
        return True

    def end(self, why: AllstopError) -> None:
        """Let the stream end once what is queued is sent; the first reason stays."""
        if self.ending is None:
            self.ending = why
            self._wake.set()

    async def messages(self) -> AsyncIterator[shim_pb2.CoordinatorMessage]:
        """What is to be sent, in order, until the stream has ended and the queue is empty.

        Waits without a deadline of its own: the caller's stream has keepalive, and `end` wakes it.
        """
        while True:
            while self._outgoing:
                yield self._outgoing.popleft()
            if self.ending is not None:
                return
            self._wake.clear()
            await self._wake.wait()
