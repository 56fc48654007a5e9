"""The ShimLink service: one Attach call per shim, Hello first."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import grpc
import grpc.aio
import structlog
from allstop.v1 import shim_pb2, shim_pb2_grpc

from coordinator.core import events
from coordinator.core.errors import AllstopError, BadRequest, DeadlinePassed, LinkError, Where
from coordinator.link import wire
from coordinator.link.hub import Hub
from coordinator.link.mapping import abort_with
from coordinator.link.stream import ShimStream

log = structlog.get_logger(__name__)

NODE_LEASE_S = 20.0  # shims report every second; a loaded machine may keep one from it
HELLO_DEADLINE_S = 10.0
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")

Post = Callable[[events.Event], Awaitable[None]]
Progressed = Callable[[shim_pb2.Progress], None]


def check_name(kind: str, name: str) -> None:
    """Names become parts of etcd keys and paths; raises BadRequest for one that cannot be."""
    if NAME.fullmatch(name) is None:
        raise BadRequest(
            f"{name!r} cannot be the name of a {kind}",
            advice="a name is 1 to 63 letters, digits, '.', '_', '-'; the first a letter or digit",
        )


class LinkService(shim_pb2_grpc.ShimLinkServicer):
    """Takes shims in while this coordinator leads, and turns what they say into events."""

    def __init__(
        self,
        hub: Callable[[], Hub],
        post: Post,
        progressed: Progressed,
        *,
        hello_deadline_s: float = HELLO_DEADLINE_S,
        node_lease_s: float = NODE_LEASE_S,
    ) -> None:
        """`hub` raises LinkError while nobody leads; `post` waits while the loop is behind.

        A shim that says nothing for `node_lease_s` is lost, though its connection may be well:
        gRPC answers pings for a process whose own loop hangs.
        """
        self._hub = hub
        self._post = post
        self._progressed = progressed
        self._hello_deadline_s = hello_deadline_s
        self._node_lease_s = node_lease_s

    async def Attach(  # noqa: N802 - the name is the proto's
        self, request_iterator: AsyncIterator[shim_pb2.ShimMessage], context: Any
    ) -> AsyncIterator[shim_pb2.CoordinatorMessage]:
        """One shim's stream, from Hello to Goodbye, loss, or the end of this leadership."""
        try:
            hub = self._hub()
            hello = await self._hello(request_iterator)
            stream = hub.attach(hello)
        except AllstopError as error:
            await abort_with(context, error)
        reading = asyncio.create_task(
            self._read(hub, stream, request_iterator), name=f"shim {stream.node}"
        )
        try:
            async for message in stream.messages():
                yield message
        finally:
            # also when gRPC cancels this handler; the reader may not have seen the end yet
            reading.cancel()
            hub.lose(stream, LinkError("the stream ended", where=Where(node=stream.node)))
        if stream.ending is not None and not stream.left:
            await abort_with(context, stream.ending)

    async def _hello(self, requests: AsyncIterator[shim_pb2.ShimMessage]) -> shim_pb2.Hello:
        try:
            async with asyncio.timeout(self._hello_deadline_s):
                message = await anext(requests, None)
        except TimeoutError:
            raise DeadlinePassed(
                f"no Hello within {self._hello_deadline_s:g} s of opening the stream"
            ) from None
        if message is None or message.WhichOneof("body") != "hello":
            raise BadRequest("the first message of a shim's stream must be Hello")
        check_name("node", message.hello.facts.node)
        for worker in message.hello.workers:
            check_name("job", worker.job)
        return message.hello

    async def _read(
        self, hub: Hub, stream: ShimStream, requests: AsyncIterator[shim_pb2.ShimMessage]
    ) -> None:
        """Take in what the shim says; its end, however it comes, ends the stream."""
        why: AllstopError = LinkError(
            "the stream ended without Goodbye (process dead, machine or network gone, or frozen)",
            where=Where(node=stream.node),
            definite=False,
        )
        try:
            while (message := await self._next(requests)) is not None:
                if stream.ending is not None:
                    return
                if message.WhichOneof("body") == "goodbye":
                    stream.left = True
                    hub.leave(stream, message.goodbye.reason)
                    return
                await self._take(hub, stream, message)
        except AllstopError as error:
            why = error.at(node=stream.node)
        except grpc.aio.AioRpcError as error:
            why = LinkError(f"the stream broke: {error.details()}", where=Where(node=stream.node))
        finally:
            hub.lose(stream, why)

    async def _next(
        self, requests: AsyncIterator[shim_pb2.ShimMessage]
    ) -> shim_pb2.ShimMessage | None:
        """The next message, None at the end; raises LinkError when the node's lease runs out."""
        try:
            async with asyncio.timeout(self._node_lease_s):
                return await anext(requests, None)
        except TimeoutError:
            raise LinkError(
                f"its lease ran out: the shim has said nothing for {self._node_lease_s:g} s, though"
                " its connection stands (it hangs, or its machine is overloaded)",
                definite=False,
            ) from None

    async def _take(self, hub: Hub, stream: ShimStream, message: shim_pb2.ShimMessage) -> None:
        node, kind = stream.node, message.WhichOneof("body")
        if kind == "result":
            await self._post(wire.result_event(node, message.result))
        elif kind == "report":
            for worker in message.report.workers:
                check_name("job", worker.job)
            await self._post(wire.report_event(node, stream.session, message.report))
        elif kind == "exited":
            await self._post(wire.exit_event(node, message.exited))
        elif kind == "answer":
            hub.answered(stream, message.answer)
        elif kind == "progress":
            self._progressed(message.progress)
        elif kind == "hello":
            raise BadRequest("a second Hello on one stream")
        else:
            log.warning("unknown message of a newer shim ignored", node=node)
