"""The ShimLink service: one Attach call per shim, Hello first."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from functools import partial
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
from coordinator.security.guard import Guard

log = structlog.get_logger(__name__)

NODE_LEASE_S = 20.0  # shims report every second; a loaded machine may keep one from it
BEHIND_PAUSE_S = 0.05
ATTACH = "/allstop.v1.ShimLink/Attach"


class LinkService(shim_pb2_grpc.ShimLinkServicer):
    """Brings shims to this process's carrier, whoever leads."""

    def __init__(
        self,
        carrier: Carrier,
        *,
        hello_deadline_s: float = HELLO_DEADLINE_S,
        node_lease_s: float = NODE_LEASE_S,
        guard: Guard | None = None,
    ) -> None:
        """A shim that says nothing for `node_lease_s` is lost, though its connection may be well.

        gRPC answers pings for a process whose own loop hangs.
        """
        self._carrier = carrier
        self._guard = guard or Guard()
        self._hello_deadline_s = hello_deadline_s
        self._node_lease_s = node_lease_s

    async def Attach(  # noqa: N802 - the name is the proto's
        self, request_iterator: AsyncIterator[shim_pb2.ShimMessage], context: Any
    ) -> AsyncIterator[shim_pb2.CoordinatorMessage]:
        """One shim's stream, from Hello to Goodbye or loss."""
        try:
            hello = await self._hello(request_iterator)
            self._guard.check(context, ATTACH, node=hello.facts.node)
            stream = self._carrier.attach(hello)
        except AllstopError as error:
            await abort_with(context, error)
        lease = _Lease(self._node_lease_s, partial(self._carrier.lose, stream))
        reading = asyncio.create_task(
            self._read(stream, lease, request_iterator), name=f"shim {stream.node}"
        )
        try:
            while stream.ending is None or stream.waiting:
                message = stream.next_joined()
                if message is None:
                    await stream.wait()
                else:
                    yield message
        finally:
            # also when gRPC cancels this handler; the reader may not have seen the end yet
            reading.cancel()
            lease.end()
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
        self, stream: ShimStream, lease: _Lease, requests: AsyncIterator[shim_pb2.ShimMessage]
    ) -> None:
        """Take in what the shim says; its end, however it comes, ends the stream."""
        carrier = self._carrier
        why: AllstopError = LinkError(
            "the stream ended without Goodbye (process dead, machine or network gone, or frozen)",
            where=Where(node=stream.node),
            definite=False,
        )
        try:
            async for message in requests:
                if stream.ending is not None:
                    return
                kind = message.WhichOneof("body")
                if kind == "goodbye":
                    carrier.leave(stream, message.goodbye.reason)
                    return
                if kind is not None:  # else it is a sign of life, or a newer shim's
                    carrier.say(stream, message)
                while carrier.behind:
                    lease.renew(BEHIND_PAUSE_S)
                    await asyncio.sleep(BEHIND_PAUSE_S)
                lease.renew()
        except AllstopError as error:
            why = error.at(node=stream.node)
        except grpc.aio.AioRpcError as error:
            why = LinkError(f"the stream broke: {error.details()}", where=Where(node=stream.node))
        finally:
            carrier.lose(stream, why)


class _Lease:
    """Notices that a shim says nothing any more; costs next to nothing while it speaks."""

    def __init__(self, seconds: float, lose: Callable[[AllstopError], None]) -> None:
        """It begins now; `lose` is called once, when nothing was heard for so long."""
        self._seconds = seconds
        self._lose = lose
        self._loop = asyncio.get_running_loop()
        self._until = self._loop.time() + seconds
        self._timer = self._loop.call_at(self._until, self._look)

    def renew(self, more_s: float = 0.0) -> None:
        """Something was heard; `more_s`: nothing will be read for so long."""
        self._until = self._loop.time() + self._seconds + more_s

    def end(self) -> None:
        """The stream is over."""
        self._timer.cancel()

    def _look(self) -> None:
        if self._loop.time() < self._until:
            self._timer = self._loop.call_at(self._until, self._look)
            return
        self._lose(
            LinkError(
                f"its lease ran out: the shim has said nothing for {self._seconds:g} s, though its"
                " connection stands (it hangs, or its machine is overloaded)",
                definite=False,
            )
        )
