"""The stream to a coordinator: dialled by the shim, one at a time, again and again for ever."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator, Sequence
from typing import Protocol

import grpc
import grpc.aio
import structlog
from allstop.v1 import shim_pb2, shim_pb2_grpc

from coordinator.core.errors import AllstopError, LinkError

log = structlog.get_logger(__name__)

OUTGOING_MAX = 1_024
JOINED_MAX = 16  # results beside the first in one message
PROGRESS_MAX = 64  # beyond this many waiting messages progress is not worth sending
WELCOME_S = 5.0
BACKOFF_FIRST_S = 0.1
BACKOFF_LAST_S = 3.0
MESSAGE_BYTES_MAX = 16 << 20

# A frozen or cut-off peer is noticed after time + timeout; `ping_timeout_ms` is what grpc obeys.
CHANNEL_OPTIONS = (
    ("grpc.keepalive_time_ms", 2_000),
    ("grpc.keepalive_timeout_ms", 4_000),
    ("grpc.http2.ping_timeout_ms", 4_000),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.max_receive_message_length", MESSAGE_BYTES_MAX),
    ("grpc.max_send_message_length", MESSAGE_BYTES_MAX),
    ("grpc.enable_http_proxy", 0),
    ("grpc.use_local_subchannel_pool", 1),
)


Outgoing = asyncio.Queue[shim_pb2.ShimMessage | None]  # None: the stream has ended


class Handler(Protocol):
    """Who lives behind the stream; the agent."""

    def hello(self) -> shim_pb2.ShimMessage:
        """The first message of a new stream."""

    def on_welcome(self, welcome: shim_pb2.Welcome) -> None:
        """A coordinator took us; raises Fenced when it is one of the past."""

    def on_message(self, message: shim_pb2.CoordinatorMessage) -> None:
        """Take one message without waiting."""


class Stream:
    """Keeps one stream to the first coordinator that answers."""

    def __init__(
        self,
        addresses: Sequence[str],
        handler: Handler,
        *,
        welcome_s: float = WELCOME_S,
        credentials: grpc.ChannelCredentials | None = None,
        server_name: str = "",
    ) -> None:
        """`addresses` are host:port or unix:path; nothing is dialled before `run`.

        With `credentials` TCP connections are TLS; `server_name` is the name in the coordinators'
        certificates where that is not the address.
        """
        self._credentials = credentials
        self._server_name = server_name
        self._addresses = tuple(addresses)
        self._handler = handler
        self._welcome_s = welcome_s
        self._outgoing: Outgoing | None = None
        self._overflowed = False
        self._call: grpc.aio.StreamStreamCall[shim_pb2.ShimMessage, shim_pb2.CoordinatorMessage]
        self._over = asyncio.Event()  # the present call has ended
        self._leaving = asyncio.Event()
        self.trouble = ""  # why there is no stream now; empty while there is one

    @property
    def attached(self) -> bool:
        """Whether a coordinator has welcomed us and the stream stands."""
        return self._outgoing is not None

    def send(self, message: shim_pb2.ShimMessage) -> bool:
        """Queue a message; False when there is no stream: it is told anew after the next Hello.

        A queue that is full ends the stream, since what is missing could not be known.
        """
        queue = self._outgoing
        if queue is None:
            return False
        if message.WhichOneof("body") in ("progress", "doing") and queue.qsize() > PROGRESS_MAX:
            return False
        if queue.qsize() >= OUTGOING_MAX:
            self._overflowed = True
            self._outgoing = None
            self._call.cancel()
            return False
        queue.put_nowait(message)
        return True

    async def run(self) -> None:
        """Dial, serve, dial again, until `leave`; back-off grows while nobody answers."""
        backoff_s = BACKOFF_FIRST_S
        while not self._leaving.is_set():
            for address in self._addresses:
                if await self._attempt(address):
                    backoff_s = BACKOFF_FIRST_S
                if self._leaving.is_set():
                    return
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(backoff_s * random.uniform(0.5, 1.0)):
                    await self._leaving.wait()
            backoff_s = min(backoff_s * 2, BACKOFF_LAST_S)

    async def flush(self, *, at_most_s: float) -> None:
        """Wait until all that was said is on its way; without a stream there is nothing."""
        if self._outgoing is not None:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(at_most_s):
                    await self._outgoing.join()

    async def leave(self, reason: str, *, deadline_s: float) -> None:
        """Say Goodbye and wait until it was heard; without a stream there is nobody to tell.

        Who has heard it ends the stream. Sent is not enough: what ends the call next overtakes what
        is still in this process's buffers, and a stream that ends without Goodbye is a lost node.
        """
        queue, self._outgoing = self._outgoing, None
        self._leaving.set()
        if queue is None:
            return
        goodbye = shim_pb2.ShimMessage(goodbye=shim_pb2.Goodbye(reason=reason))
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(deadline_s):
                queue.put_nowait(goodbye)
                await queue.join()
                await self._over.wait()

    async def _attempt(self, address: str) -> bool:
        """One stream from dial to end; True when a coordinator had welcomed us."""
        welcomed = False
        async with self._channel(address) as channel:
            queue: Outgoing = asyncio.Queue()
            self._over.clear()
            stub = shim_pb2_grpc.ShimLinkStub(channel)  # type: ignore[no-untyped-call]
            queue.put_nowait(self._handler.hello())
            self._overflowed = False
            self._call = stub.Attach(_requests(queue))
            try:
                messages = aiter(self._call)
                await self._welcome(messages)
                welcomed, self._outgoing, self.trouble = True, queue, ""
                async for message in messages:
                    self._handler.on_message(message)
                self._lost(address, "the coordinator ended the stream")
            except (AllstopError, TimeoutError) as error:
                self._lost(address, str(error) or "no Welcome in time")
            except grpc.aio.AioRpcError as error:
                self._lost(address, f"{error.code().name}: {error.details()}")
            except asyncio.CancelledError:
                if _is_cancelled() or not self._overflowed:
                    raise
                self._lost(address, f"{OUTGOING_MAX} messages were waiting: too slow")
            except Exception as error:  # whatever it is, the worker must not die of it
                log.exception("the stream met an unexpected error")
                self._lost(address, f"{type(error).__name__}: {error}")
            finally:
                self._outgoing = None
                self._over.set()
                self._call.cancel()
                queue.put_nowait(None)  # grpc leaves its reader of requests waiting otherwise
        return welcomed

    def _channel(self, address: str) -> grpc.aio.Channel:
        if self._credentials is None or address.startswith("unix:"):
            return grpc.aio.insecure_channel(_target(address), options=CHANNEL_OPTIONS)
        name = (("grpc.ssl_target_name_override", self._server_name),) if self._server_name else ()
        options = (*CHANNEL_OPTIONS, *name)
        return grpc.aio.secure_channel(_target(address), self._credentials, options=options)

    async def _welcome(self, messages: AsyncIterator[shim_pb2.CoordinatorMessage]) -> None:
        async with asyncio.timeout(self._welcome_s):
            first = await anext(messages, None)
        if first is None:
            raise LinkError("the coordinator ended the stream before its Welcome")
        if not first.HasField("welcome"):
            raise LinkError(f"the first message was {first.WhichOneof('body')}, not Welcome")
        self._handler.on_welcome(first.welcome)

    def _lost(self, address: str, why: str) -> None:
        """Log a reason once, not at every try."""
        text = f"{address}: {why}"
        if text != self.trouble and not self._leaving.is_set():
            log.warning("no stream to a coordinator", address=address, why=why)
        self.trouble = text


async def _requests(queue: Outgoing) -> AsyncIterator[shim_pb2.ShimMessage]:
    """What is sent, in order, until Goodbye or the end of the stream.

    Results that wait behind one another go as one message: it costs more than what is in it.
    """
    ahead: list[shim_pb2.ShimMessage | None] = []
    while (message := ahead.pop() if ahead else await queue.get()) is not None:
        results = [message.result] if message.HasField("result") else []
        while results and not queue.empty() and len(results) <= JOINED_MAX:
            following = queue.get_nowait()
            if following is None or not following.HasField("result"):
                ahead.append(following)
                break
            results.append(following.result)
        if len(results) > 1:
            joined = shim_pb2.OrderResults(results=results)
            yield shim_pb2.ShimMessage(results=joined)
        else:
            yield message
        for _ in range(len(results) or 1):
            queue.task_done()
        if message.HasField("goodbye"):
            return


def _target(address: str) -> str:
    """grpc's name for an address: `unix:/path` and `host:port` are both understood by it."""
    return address if address.startswith("unix:") else f"dns:///{address}"


def _is_cancelled() -> bool:
    """Whether somebody has cancelled this task; grpc raises the same for a call of ours."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0
