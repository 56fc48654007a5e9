"""Outgoing halves of streams: what is still to be sent, under which right, and how it ended."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable
from typing import Generic, TypeVar

from allstop.v1 import shim_pb2

from coordinator.core.errors import AllstopError, LinkError, Where

OUTGOING_MAX = 1_024
JOINED_MAX = 16  # orders beside the first in one message

Message = TypeVar("Message")
Right = Callable[[], None]


def always() -> None:
    """A right that does not end."""


class Outbox(Generic[Message]):
    """Messages on their way out of one stream; everything here runs on one loop.

    Each is queued under a right, which is asked again at the moment of sending: what a leader has
    queued does not go out after its right has ended, however long the process stood still. The
    stream has ended as soon as `ending` is set, whatever gRPC still sends.
    """

    def __init__(self, limit: int = OUTGOING_MAX) -> None:
        """Nothing is sent before `messages` is iterated; `limit` is how many may wait."""
        self.limit = limit
        self.ending: AllstopError | None = None
        self._waiting: deque[tuple[Message, Right]] = deque()
        self._wake = asyncio.Event()

    @property
    def waiting(self) -> int:
        """How many messages have not been handed to gRPC yet."""
        return len(self._waiting)

    @property
    def full(self) -> bool:
        """Whether there is no room for another message."""
        return len(self._waiting) >= self.limit

    def put(self, message: Message, right: Right = always) -> None:
        """Queue one message; nothing happens when the stream has ended."""
        if self.ending is None:
            self._waiting.append((message, right))
            self._wake.set()

    def clear(self) -> list[Message]:
        """Take back what has not been sent."""
        taken = [message for message, _ in self._waiting]
        self._waiting.clear()
        return taken

    def end(self, why: AllstopError) -> None:
        """Let the stream end once what is queued is sent; the first reason stays."""
        if self.ending is None:
            self.ending = why
            self._wake.set()

    async def messages(
        self,
        *,
        sent: Callable[[Message], None] = lambda message: None,
        refused: Callable[[Message], None] = lambda message: None,
        idle_s: float | None = None,
        idle: Message | None = None,
    ) -> AsyncIterator[Message]:
        """What is to be sent, in order, until the stream has ended and the queue is empty.

        `sent` is told of each before it goes, `refused` of each whose right has ended. With
        `idle_s`, `idle` is sent whenever there was nothing for so long. Without, it waits without a
        deadline of its own: the caller's stream has keepalive, and `end` wakes it.
        """
        while self.ending is None or self._waiting:
            message = self.next(sent=sent, refused=refused)
            if message is not None:
                yield message
                continue
            try:
                async with asyncio.timeout(idle_s):
                    await self.wait()
            except TimeoutError:
                if idle is not None:
                    yield idle

    def next(
        self, *, sent: Callable[[Message], None], refused: Callable[[Message], None]
    ) -> Message | None:
        """The next message that may go; None when there is none. `sent` and `refused` as above."""
        while self._waiting:
            message, right = self._waiting.popleft()
            try:
                right()
            except AllstopError:
                refused(message)
                continue
            sent(message)
            return message
        return None

    def next_while(self, fits: Callable[[Message], bool], at_most: int) -> list[Message]:
        """Messages at the head that fit and may go."""
        taken: list[Message] = []
        while self._waiting and len(taken) < at_most:
            message, right = self._waiting[0]
            try:
                right()
            except AllstopError:
                break  # `next` refuses it
            if not fits(message):
                break
            taken.append(message)
            self._waiting.popleft()
        return taken

    async def wait(self) -> None:
        """Wait until there is something to send, or the stream has ended."""
        if self.ending is None and not self._waiting:
            self._wake.clear()
            await self._wake.wait()


class ShimStream:
    """One attached shim, as its carrier sees it.

    `session` is the shim process's own id; a shim that dials again keeps it, so two streams can
    share a session. `attachment` is the number under which the leader knows what the shim said last
    about itself; 0 while it does not know it: what the shim says then is not passed on.
    """

    def __init__(
        self, node: str, session: str, *, number: int = 0, outgoing_max: int = OUTGOING_MAX
    ) -> None:
        """Nothing is sent before `messages` is iterated. `number` is the carrier's, for itself."""
        self.node = node
        self.session = session
        self.number = number
        self.hello = 0  # the shim's own number of its last Hello
        self.attachment = 0
        self.hellos_due = 0  # Welcomes that the shim has not answered yet
        self.welcomed = False  # a Welcome went out: the shim answers every further one with Hello
        self.left = False  # the shim said Goodbye
        self._outbox: Outbox[shim_pb2.CoordinatorMessage] = Outbox(outgoing_max)

    @property
    def ending(self) -> AllstopError | None:
        """Why the stream has ended; None while it stands."""
        return self._outbox.ending

    @property
    def waiting(self) -> int:
        """How many messages have not been handed to gRPC yet."""
        return self._outbox.waiting

    def send(self, message: shim_pb2.CoordinatorMessage, right: Right = always) -> bool:
        """Queue one message; False when the stream has ended or ends now because it is too slow."""
        if self._outbox.ending is not None:
            return False
        if self._outbox.full:
            self._outbox.clear()
            self.end(
                LinkError(
                    f"the shim reads too slowly: {self._outbox.limit} messages were waiting for it",
                    where=Where(node=self.node),
                    definite=False,
                )
            )
            return False
        self._outbox.put(message, right)
        return True

    def welcome(self, message: shim_pb2.CoordinatorMessage, right: Right) -> bool:
        """Queue a Welcome; the shim answers all but the first of a stream with a new Hello."""
        self.hellos_due += 1
        return self.send(message, right)

    def forget(self) -> None:
        """Take back what has not been sent: its leader is not followed any more."""
        self.attachment = 0
        for message in self._outbox.clear():
            self._unsent(message)

    def end(self, why: AllstopError) -> None:
        """Let the stream end once what is queued is sent; the first reason stays."""
        self._outbox.end(why)

    def messages(self) -> AsyncIterator[shim_pb2.CoordinatorMessage]:
        """What is to be sent, in order, until the stream has ended and the queue is empty."""
        return self._outbox.messages(sent=self._sent, refused=self._unsent)

    def next(self) -> shim_pb2.CoordinatorMessage | None:
        """The next message that may go; None when there is none."""
        return self._outbox.next(sent=self._sent, refused=self._unsent)

    def next_joined(self) -> shim_pb2.CoordinatorMessage | None:
        """The same, with the orders that wait behind an order in one message with it."""
        first = self.next()
        if first is None or not first.HasField("order"):
            return first
        more = self._outbox.next_while(lambda message: message.HasField("order"), JOINED_MAX)
        if not more:
            return first
        orders = [first.order, *(message.order for message in more)]
        return shim_pb2.CoordinatorMessage(orders=shim_pb2.Orders(orders=orders))

    async def wait(self) -> None:
        """Wait until there is something to send, or the stream has ended."""
        await self._outbox.wait()

    def _sent(self, message: shim_pb2.CoordinatorMessage) -> None:
        if message.HasField("welcome") and not self.welcomed:
            self.welcomed = True
            self.hellos_due -= 1  # the shim's Hello came before this one

    def _unsent(self, message: shim_pb2.CoordinatorMessage) -> None:
        if message.HasField("welcome"):
            self.hellos_due -= 1
