"""The stream between a carrier's process and the leader's; the carrier dials."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator, Callable
from typing import Any, TypeVar

import grpc
import grpc.aio
import structlog
from allstop.v1 import carrier_pb2, carrier_pb2_grpc

from coordinator.core.errors import AllstopError, BadRequest, DeadlinePassed, Fenced, LinkError
from coordinator.link.carrier import Carrier
from coordinator.link.hub import Branch, Hub
from coordinator.link.mapping import abort_with, error_of_call
from coordinator.link.names import check_name
from coordinator.link.stream import Outbox, Right, always
from coordinator.security.guard import Guard
from coordinator.store.election import Leader

log = structlog.get_logger(__name__)

CARRY = "/allstop.v1.CarrierLink/Carry"
WELCOME_S = 5.0
BEAT_S = 2.0  # a carrier with nothing to say gives a sign of life
CARRIER_LEASE_S = 15.0
OUTGOING_MAX = 256  # of at most about a MiB each
BEHIND = 64  # so many messages wait: shims should be read more slowly
BEHIND_PAUSE_S = 0.05
BACKOFF_FIRST_S = 0.05
BACKOFF_LAST_S = 1.0

Message = TypeVar("Message")
Dial = Callable[[str], grpc.aio.Channel]


class _End:
    """One end of the stream: what goes out there, under the right of whoever sends."""

    def __init__(self, outbox: Outbox[Any], right: Right, ended: Callable[[AllstopError], None]):
        """`ended` is called with the reason when this end gives the stream up."""
        self.outbox = outbox
        self._right = right
        self._ended = ended

    def send(self, message: Any) -> None:
        """Queue a message; a queue that is full ends the stream, since nothing may be left out."""
        if self.outbox.full and self.outbox.ending is None:
            waiting = f"{self.outbox.limit} messages were waiting for it"
            self.end(LinkError(f"the other side reads too slowly: {waiting}", definite=False))
        self.outbox.put(message, self._right)

    def end(self, why: AllstopError) -> None:
        """Nothing that waits is sent any more."""
        self.outbox.clear()
        self.outbox.end(why)
        self._ended(why)


# -- the leader's end ------------------------------------------------------------------------------


class RelayService(carrier_pb2_grpc.CarrierLinkServicer):
    """Lets carriers of other processes follow the leader of this one."""

    def __init__(
        self,
        hub: Callable[[], Hub],
        *,
        hello_deadline_s: float = WELCOME_S,
        carrier_lease_s: float = CARRIER_LEASE_S,
        outgoing_max: int = OUTGOING_MAX,
        guard: Guard | None = None,
    ) -> None:
        """`hub` raises LinkError while this process does not lead."""
        self._hub = hub
        self._guard = guard or Guard()
        self._hello_deadline_s = hello_deadline_s
        self._carrier_lease_s = carrier_lease_s
        self._outgoing_max = outgoing_max

    async def Carry(  # noqa: N802 - the name is the proto's
        self, request_iterator: AsyncIterator[carrier_pb2.CarrierMessage], context: Any
    ) -> AsyncIterator[carrier_pb2.LeaderMessage]:
        """One carrier's stream, from its CarrierHello to loss or the end of this leadership."""
        try:
            self._guard.check(context, CARRY)
            hub = self._hub()
            hello = await self._hello(request_iterator)
            outbox: Outbox[carrier_pb2.LeaderMessage] = Outbox(self._outgoing_max)
            outbox.put(_welcome(hub), hub.check)
            down = _End(outbox, hub.check, lambda why: hub.part(branch, why))
            branch = hub.join(hello.name, hello.session, down)
        except AllstopError as error:
            await abort_with(context, error)
        reading = asyncio.create_task(
            self._read(hub, branch, request_iterator), name=f"carrier {hello.name}"
        )
        try:
            async for message in outbox.messages(refused=lambda message: down.end(_over(hub))):
                yield message
        finally:
            reading.cancel()
            hub.part(branch, LinkError("its stream ended"))
        if outbox.ending is not None:
            await abort_with(context, outbox.ending)

    async def _hello(
        self, requests: AsyncIterator[carrier_pb2.CarrierMessage]
    ) -> carrier_pb2.CarrierHello:
        message = await _next(requests, self._hello_deadline_s)
        if message is None or not message.HasField("hello") or not message.hello.session:
            raise BadRequest("the first message of a carrier's stream must be CarrierHello")
        check_name("carrier", message.hello.name)
        return message.hello

    async def _read(
        self, hub: Hub, branch: Branch, requests: AsyncIterator[carrier_pb2.CarrierMessage]
    ) -> None:
        why: AllstopError = LinkError(
            "its stream ended (process dead, machine or network gone, or frozen)", definite=False
        )
        try:
            while (message := await _next(requests, self._carrier_lease_s)) is not None:
                hub.take(branch, message)
                while hub.behind():  # noqa: ASYNC110 - seldom, and whoever ends a reign wakes nobody
                    await asyncio.sleep(BEHIND_PAUSE_S)
        except AllstopError as error:
            why = error
        except grpc.aio.AioRpcError as error:
            why = LinkError(f"its stream broke: {error.details()}", definite=False)
        finally:
            hub.part(branch, why)


def _welcome(hub: Hub) -> carrier_pb2.LeaderMessage:
    welcome = carrier_pb2.LeaderWelcome(
        coordinator=hub.coordinator, report_interval_ms=hub.report_interval_ms
    )
    return carrier_pb2.LeaderMessage(epoch=hub.epoch, welcome=welcome)


def _over(hub: Hub) -> AllstopError:
    return Fenced(f"epoch {hub.epoch} has ended", advice="look for the new leader")


# -- the carrier's end -----------------------------------------------------------------------------


class _Uplink(_End):
    """A leader in another process, as the carrier sees it."""

    def __init__(
        self,
        welcome: carrier_pb2.LeaderMessage,
        outbox: Outbox[Any],
        ended: Callable[[AllstopError], None],
    ) -> None:
        """Whether the leader's right has ended is not known here: what is late, shims refuse."""
        super().__init__(outbox, always, ended)
        self.epoch = welcome.epoch
        self.coordinator = welcome.welcome.coordinator
        self.report_interval_ms = welcome.welcome.report_interval_ms

    @property
    def behind(self) -> bool:
        """Whether much is waiting to be sent."""
        return self.outbox.waiting >= BEHIND

    def check(self) -> None:
        """See above."""

    def close(self, why: AllstopError) -> None:
        """End the stream."""
        self.end(why)


class RelayClient:
    """Lets this process's carrier follow whoever leads elsewhere."""

    def __init__(
        self,
        carrier: Carrier,
        dial: Dial,
        *,
        welcome_s: float = WELCOME_S,
        beat_s: float = BEAT_S,
        outgoing_max: int = OUTGOING_MAX,
        own: Callable[[Leader], bool] | None = None,
    ) -> None:
        """`dial` makes a channel, closed here.

        `own` says whether a leader is this process; by default one of the carrier's name is.
        """
        self._carrier = carrier
        self._dial = dial
        self._welcome_s = welcome_s
        self._beat_s = beat_s
        self._outgoing_max = outgoing_max
        self._own = own or (lambda leader: leader.name == carrier.name)

    async def run(self, leaders: AsyncIterator[Leader | None]) -> None:
        """Follow each leader until the next comes; ends with `leaders`, or when cancelled."""
        following: asyncio.Task[None] | None = None
        try:
            async for leader in leaders:
                await _cancelled(following)
                following = None
                if leader is not None and not self._own(leader):
                    following = asyncio.create_task(
                        self._follow(leader), name=f"follow {leader.name}"
                    )
        finally:
            await _cancelled(following)

    async def _follow(self, leader: Leader) -> None:
        """Dial the leader again and again; back-off grows while it does not take us."""
        backoff_s, last = BACKOFF_FIRST_S, ""
        while True:
            try:
                taken, why = await self._attempt(leader)
            except Exception as error:  # whatever it is, the shims' streams must not die of it
                log.exception("the relay met an unexpected error")
                taken, why = False, LinkError(f"unexpected {type(error).__name__}: {error}")
            if taken or why.what != last:
                log.warning("no link to the leader", leader=leader.name, why=str(why))
            last = why.what
            backoff_s = BACKOFF_FIRST_S if taken else min(backoff_s * 2, BACKOFF_LAST_S)
            await asyncio.sleep(backoff_s * random.uniform(0.5, 1.0))

    async def _attempt(self, leader: Leader) -> tuple[bool, AllstopError]:
        """One stream from dial to end: whether the leader had taken us, and why it ended."""
        outbox: Outbox[Any] = Outbox(self._outgoing_max)
        hello = carrier_pb2.CarrierHello(name=self._carrier.name, session=self._carrier.session)
        outbox.put(carrier_pb2.CarrierMessage(hello=hello))
        channel = self._dial(leader.address)
        stub = carrier_pb2_grpc.CarrierLinkStub(channel)  # type: ignore[no-untyped-call]
        call = stub.Carry(outbox.messages(idle_s=self._beat_s, idle=carrier_pb2.CarrierMessage()))
        uplink: _Uplink | None = None
        taken = False
        why: AllstopError = LinkError("the leader ended the stream", definite=False)
        try:
            welcome = await self._welcomed(call, leader)
            uplink = _Uplink(welcome, outbox, lambda why: call.cancel())
            self._carrier.follow(uplink)
            taken = True
            async for message in call:
                self._carrier.take(uplink, message)
        except AllstopError as error:
            why = error
        except grpc.aio.AioRpcError as error:
            why = error_of_call(error, leader.address)
        except asyncio.CancelledError:
            if _is_cancelled() or outbox.ending is None:  # else we have cancelled the call
                why = LinkError(f"{leader.name} does not lead any more")
                raise
        finally:
            if outbox.ending is not None:
                why = outbox.ending
            if uplink is not None:
                self._carrier.unfollow(why, uplink)
            outbox.clear()
            outbox.end(why)  # grpc leaves its reader of requests waiting otherwise
            call.cancel()
            await channel.close()
        return taken, why

    async def _welcomed(self, call: Any, leader: Leader) -> carrier_pb2.LeaderMessage:
        messages: AsyncIterator[carrier_pb2.LeaderMessage] = aiter(call)
        message = await _next(messages, self._welcome_s)
        if message is None or not message.HasField("welcome"):
            raise LinkError("the leader's first message was not its welcome")
        if message.epoch < leader.epoch:
            raise Fenced(
                f"{leader.name} still speaks in epoch {message.epoch}; epoch {leader.epoch} began"
            )
        return message


async def _next(messages: AsyncIterator[Message], deadline_s: float) -> Message | None:
    """The next message, None at the end; raises DeadlinePassed."""
    try:
        async with asyncio.timeout(deadline_s):
            return await anext(messages, None)
    except TimeoutError:
        raise DeadlinePassed(f"nothing was heard for {deadline_s:g} s", definite=False) from None


async def _cancelled(task: asyncio.Task[None] | None) -> None:
    if task is not None:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


def _is_cancelled() -> bool:
    """Whether somebody has cancelled this task; grpc raises the same for a call of ours."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0
