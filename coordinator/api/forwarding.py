"""Any replica answers operators: one that does not lead passes each call on to the leader.

Deadline, cancellation, messages and errors pass through as they are. A call is passed on once
(metadata `allstop-forwarded`): two replicas that take each other for the leader must not play ball.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from typing import Any

import grpc
import grpc.aio
from allstop.v1 import operator_pb2, operator_pb2_grpc

from coordinator.api.channels import Channels
from coordinator.api.service import OperatorService
from coordinator.core.errors import AllstopError, LinkError, NoLeader
from coordinator.link.mapping import ERROR_METADATA, abort_with, error_of_call
from coordinator.store.election import Leader

FORWARDED = "allstop-forwarded"
UNLIMITED_S = 10 * 365 * 24 * 3600.0  # what gRPC says is left where there is no deadline


class Forwarding(operator_pb2_grpc.OperatorServicer):
    """The Operator service of one process: its own while it leads, else the leader's."""

    def __init__(
        self,
        name: str,
        *,
        own: Callable[[], OperatorService | None],
        leader: Callable[[], Leader | None],
        channels: Channels,
    ) -> None:
        """`own` is the service to use while this process leads, `leader` who leads otherwise."""
        self._name = name
        self._own = own
        self._leader = leader
        self._channels = channels

    async def _upstream(self, context: Any) -> tuple[Any, str]:
        """A stub of the leader, and its address.

        Raises NoLeader, or LinkError when it is not reached from here.
        """
        metadata = dict(context.invocation_metadata() or ())
        leader = self._leader()
        if FORWARDED in metadata:
            raise NoLeader(
                f"no leader yet: {metadata[FORWARDED]} takes {self._name} for the leader,"
                " which it is not (yet, or any more)",
                advice="try again",
            )
        if leader is None:
            raise NoLeader(
                f"no leader yet: {self._name} knows of none", advice="try again in a moment"
            )
        if not leader.address:
            raise NoLeader(
                f"{leader.name} leads and has not said where it can be reached",
                advice="ask it directly; it may be of an older version",
            )
        try:
            channel = await self._channels.connected(leader.address)
        except LinkError as error:
            # Somebody is to lead, and soon either it is reached or another one leads.
            raise NoLeader(
                f"{leader.name} leads and is not reached from {self._name}: {error.what}",
                advice=error.advice,
                details=error.details,
            ) from error
        return operator_pb2_grpc.OperatorStub(channel), leader.address  # type: ignore[no-untyped-call]

    def _options(self, context: Any) -> dict[str, Any]:
        """What a call passed on has from the one that came in."""
        left_s = context.time_remaining()
        limited = left_s is not None and left_s < UNLIMITED_S
        return {
            "timeout": left_s if limited else None,
            "metadata": ((FORWARDED, self._name),),
        }

    async def _answer(self, method: str, request: Any, context: Any) -> Any:
        own = self._own()
        if own is not None:
            return await getattr(own, method)(request, context)
        try:
            stub, address = await self._upstream(context)
            return await getattr(stub, method)(request, **self._options(context))
        except AllstopError as error:
            await abort_with(context, error)
        except grpc.aio.AioRpcError as error:
            await _fail_alike(context, error, address)

    async def _stream(self, method: str, request: Any, context: Any) -> AsyncIterator[Any]:
        own = self._own()
        if own is not None:
            async for event in getattr(own, method)(request, context):
                yield event
            return
        try:
            stub, address = await self._upstream(context)
            call = getattr(stub, method)(request, **self._options(context))
            try:
                async for event in call:
                    yield event
            finally:
                call.cancel()
        except AllstopError as error:
            await abort_with(context, error)
        except grpc.aio.AioRpcError as error:
            await _fail_alike(context, error, address)


async def _fail_alike(context: Any, error: grpc.aio.AioRpcError, address: str) -> None:
    """End a call as the leader ended it; where it did not, with what its silence means."""
    words = [pair for pair in error.trailing_metadata() or () if pair[0] == ERROR_METADATA]
    if words:
        await context.abort(error.code(), error.details() or "", tuple(words))
    await abort_with(context, error_of_call(error, address))


def _unary(method: str) -> Callable[..., Any]:
    async def answer(self: Forwarding, request: Any, context: Any) -> Any:
        return await self._answer(method, request, context)

    return answer


def _streaming(method: str) -> Callable[..., Any]:
    async def stream(self: Forwarding, request: Any, context: Any) -> AsyncIterator[Any]:
        async for event in self._stream(method, request, context):
            yield event

    return stream


for _method in operator_pb2.DESCRIPTOR.services_by_name["Operator"].methods:
    _made = _streaming if _method.server_streaming else _unary
    setattr(Forwarding, _method.name, _made(_method.name))
