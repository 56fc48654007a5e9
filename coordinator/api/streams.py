"""What an operator's client reads from a call that answers with a stream of events."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import Any, TypeVar

import grpc.aio

from coordinator.api.values import ActionEvent, VerifyEvent
from coordinator.codec import from_proto
from coordinator.core.errors import LinkError
from coordinator.link.mapping import error_of_call

Event = TypeVar("Event", ActionEvent, VerifyEvent)


async def events_of(stream: Any, address: str, kind: type[Event]) -> AsyncGenerator[Event, None]:
    """The events of one call up to the last; raises AllstopError when that does not come.

    The call is cancelled when the generator is closed, so close it: `contextlib.aclosing`.
    """
    try:
        async for message in stream:
            yield from_proto(message, kind)
            if message.last:
                return
    except grpc.aio.AioRpcError as error:
        raise error_of_call(error, address) from error
    finally:
        stream.cancel()
    raise LinkError(f"{address} ended the stream early", definite=False)
