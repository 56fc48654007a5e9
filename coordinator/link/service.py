"""The ShimLink service: one Attach call per shim, Hello first."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import grpc
import grpc.aio
import structlog
from allstop.v1 import shim_pb2, shim_pb2_grpc

from coordinator.core.errors import AllstopError, BadRequest, DeadlinePassed, LinkError, Where
from coordinator.link.carrier import HELLO_DEADLINE_S, Carrier
from coordinator.link.mapping import abort_with
from coordinator.link.names import check_name
from coordinator.link.stream import ShimStream

log = structlog.get_logger(__name__)

NODE_LEASE_S = 20.0  # shims report every second; a loaded machine may keep one from it
BEHIND_PAUSE_S = 0.05


class LinkService(shim_pb2_grpc.ShimLinkServicer):
    """Brings shims to this process's carrier, whoever leads."""

    def __init__(
        self,
        carrier: Carrier,
        *,
        hello_deadline_s: float = HELLO_DEADLINE_S,
        node_lease_s: float = NODE_LEASE_S,
    ) -> None:
        """A shim that says nothing for `node_lease_s` is lost, though its connection may be well.

        gRPC answers pings for a process whose own loop hangs.
        """
        self._carrier = carrier
        self._hello_deadline_s = hello_deadline_s
        self._node_lease_s = node_lease_s

    async def Attach(  # noqa: N802 - the name is the proto's
        self, request_iterator: AsyncIterator[shim_pb2.ShimMessage], context: Any
    ) -> AsyncIterator[shim_pb2.CoordinatorMessage]:
        """One shim's stream, from Hello to Goodbye or loss."""
        try:
            hello = await self._hello(request_iterator)
            stream = self._carrier.attach(hello)
        except AllstopError as error:
            await abort_with(context, error)
        reading = asyncio.create_task(
            self._read(stream, request_iterator), name=f"shim {stream.node}"
        )
        try:
            async for message in stream.messages():
                yield message
        finally:
            # also when gRPC cancels this handler; the reader may not have seen the end yet
            reading.cancel()
            self._carrier.lose(stream, LinkError("the stream ended", where=Where(node=stream.node)))
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
        self, stream: ShimStream, requests: AsyncIterator[shim_pb2.ShimMessage]
    ) -> None:
        """Take in what the shim says; its end, however it comes, ends the stream."""
        carrier = self._carrier
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
                    carrier.leave(stream, message.goodbye.reason)
                    return
                carrier.say(stream, message)
                while carrier.behind:  # noqa: ASYNC110 - seldom, and leaders change meanwhile
                    await asyncio.sleep(BEHIND_PAUSE_S)
        except AllstopError as error:
            why = error.at(node=stream.node)
        except grpc.aio.AioRpcError as error:
            why = LinkError(f"the stream broke: {error.details()}", where=Where(node=stream.node))
        finally:
            carrier.lose(stream, why)

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
