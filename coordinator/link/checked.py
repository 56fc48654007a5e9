"""A check in front of a call: what it raises ends the call, and the handler never hears of it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from typing import Any

from coordinator.core.errors import AllstopError
from coordinator.link.mapping import abort_with

Check = Callable[[Any, Any], None]  # gets the request and gRPC's context; raises AllstopError


def checked(handler: Any, check: Check) -> Any:
    """The handler of a method with the check before it.

    One of a stream of requests stays as it is: it checks by itself, as it alone can say what a
    message that is refused means for the stream.
    """
    if handler.request_streaming:
        return handler
    if handler.response_streaming:
        return handler._replace(unary_stream=_stream(handler.unary_stream, check))
    return handler._replace(unary_unary=_unary(handler.unary_unary, check))


def _unary(behaviour: Callable[..., Any], check: Check) -> Callable[..., Any]:
    async def answer(request: Any, context: Any) -> Any:
        await _require(request, context, check)
        return await behaviour(request, context)

    return answer


def _stream(behaviour: Callable[..., Any], check: Check) -> Callable[..., Any]:
    async def answer(request: Any, context: Any) -> AsyncIterator[Any]:
        await _require(request, context, check)
        async for message in behaviour(request, context):
            yield message

    return answer


async def _require(request: Any, context: Any, check: Check) -> None:
    try:
        check(request, context)
    except AllstopError as error:
        await abort_with(context, error)
