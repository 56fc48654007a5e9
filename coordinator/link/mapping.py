"""Errors of allstop as gRPC statuses and back; the only place that knows both.

The status code is the error class's own (`errors.py`); the message is its text; the fields travel
as JSON in the trailing metadata `allstop-error-bin`. Metadata is limited to 8 KiB by most gRPC
stacks, so long details are cut and the last line says how many are missing.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from typing import Any, NoReturn, Protocol

import grpc
import grpc.aio

from coordinator.core.errors import (
    AllstopError,
    BadRequest,
    BugError,
    DeadlinePassed,
    LinkError,
    all_kinds,
    from_fields,
)

ERROR_METADATA = "allstop-error-bin"
ERROR_JSON_BYTES_MAX = 6 * 1024
ERROR_LINE_CHARS_MAX = 1024


class Abortable(Protocol):
    """The part of a gRPC context that ends a call with a status."""

    async def abort(
        self, code: grpc.StatusCode, details: str = "", trailing_metadata: Any = ()
    ) -> NoReturn:
        """End the call; raises."""


def _json(fields: Mapping[str, object]) -> bytes:
    return json.dumps(fields, ensure_ascii=False, separators=(",", ":")).encode()


def packed(error: AllstopError) -> bytes:
    """The error's fields as JSON of at most ERROR_JSON_BYTES_MAX; details are cut at the end."""
    fields = error.to_fields()
    for name in ("what", "advice"):
        fields[name] = str(fields[name])[:ERROR_LINE_CHARS_MAX]
    fields["details"] = kept = list[str]()
    room = ERROR_JSON_BYTES_MAX - len(_json(fields)) - 64
    for line in error.details:
        text = line[:ERROR_LINE_CHARS_MAX]
        room -= len(json.dumps(text, ensure_ascii=False).encode()) + 1
        if room < 0:
            kept.append(f"… and {len(error.details) - len(kept)} more lines")
            break
        kept.append(text)
    return _json(fields)


def unpacked(data: bytes) -> AllstopError:
    """What `packed` packed; a LinkError where that cannot be read."""
    error = _read(data)
    return error or LinkError("the other side gave a reason that cannot be read", definite=False)


def _read(data: str | bytes) -> AllstopError | None:
    try:
        fields = json.loads(data)
    except ValueError:
        return None
    known = isinstance(fields, dict) and fields.get("kind") in all_kinds()
    return from_fields(fields) if known else None


async def abort_with(context: Abortable, error: AllstopError) -> NoReturn:
    """End a call with this error; raises what gRPC uses to leave the handler."""
    await context.abort(
        getattr(grpc.StatusCode, error.grpc_status, grpc.StatusCode.UNKNOWN),
        str(error)[:ERROR_LINE_CHARS_MAX],
        ((ERROR_METADATA, packed(error)),),
    )
    raise BugError("gRPC went on after an abort")


def as_allstop(error: Exception) -> AllstopError:
    """Whatever a handler met, as one of ours; an unknown exception is a BugError with its text."""
    if isinstance(error, AllstopError):
        return error
    if isinstance(error, asyncio.TimeoutError | TimeoutError):
        return DeadlinePassed("the coordinator did not answer in time", definite=False)
    return BugError(
        f"the coordinator met an unexpected {type(error).__name__}: {error}",
        advice="this is a defect of allstop; the coordinator's log has the traceback",
        definite=False,
    )


def error_of_call(error: grpc.aio.AioRpcError, address: str) -> AllstopError:
    """The error that a failed call to a coordinator means to its caller.

    With our metadata it is the very error raised there. Without it the call never reached a
    handler that answered: then only a refused or unreachable address is surely "not done".
    """
    for key, value in error.trailing_metadata() or ():
        if key == ERROR_METADATA and (told := _read(value)) is not None:
            return told
    code, text = error.code(), error.details() or ""
    if code is grpc.StatusCode.DEADLINE_EXCEEDED:
        return DeadlinePassed(
            f"the coordinator at {address} did not answer in time", definite=False
        )
    if code in (grpc.StatusCode.UNIMPLEMENTED, grpc.StatusCode.INVALID_ARGUMENT):
        return BadRequest(f"what answers at {address} is no coordinator of this version: {text}")
    refused = code is grpc.StatusCode.UNAVAILABLE and "failed to connect" in text.lower()
    return LinkError(
        f"the coordinator at {address} cannot be reached: {code.name}: {text}",
        advice="is it running? `allstop up` starts one; --coordinator names another address",
        definite=refused,
    )
