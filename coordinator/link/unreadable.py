"""Requests that are no protobuf, or beyond all limits: answered with BadRequest.

gRPC parses a request before any handler sees it; what the parser raises would be UNKNOWN to it.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

import grpc
import grpc.aio
from allstop.v1 import shim_pb2
from google.protobuf.message import DecodeError

from coordinator.core.errors import BadRequest
from coordinator.link.checked import checked
from coordinator.link.limits import check_said


@dataclass(frozen=True)
class Unreadable:
    """Stands for a message that cannot be taken; to look into it raises what is wrong."""

    error: BadRequest

    def __getattr__(self, name: str) -> Any:
        """Every field and method of a message."""
        raise self.error


class ReadAll(grpc.aio.ServerInterceptor):
    """Lets no message fail to parse.

    A request that cannot be read ends its call. Handlers of request streams meet the error at the
    message, like one of their own, and say what that means for the stream.
    """

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[Any]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> Any:
        """Put a parser that never raises before the handler."""
        handler = await continuation(handler_call_details)
        if handler is None or handler.request_deserializer is None:
            return handler
        readable = handler._replace(request_deserializer=_reader(handler.request_deserializer))
        return checked(readable, _require_readable)


def _require_readable(request: Any, context: Any) -> None:
    """Raises what is wrong with a request that could not be read."""
    if isinstance(request, Unreadable):
        raise request.error


def _reader(parse: Callable[[bytes], Any]) -> Callable[[bytes], Any]:
    def read(data: bytes) -> Any:
        try:
            message = parse(data)
            if isinstance(message, shim_pb2.ShimMessage):
                check_said(message)
            return message
        except BadRequest as error:
            return Unreadable(error)
        except (DecodeError, ValueError, RecursionError) as error:
            what = f"a message could not be read: {error or type(error).__name__}"
            advice = "client and coordinator may be of different versions"
            return Unreadable(BadRequest(what, advice=advice))

    return read
