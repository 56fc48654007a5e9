"""The protocol of Redis on the wire, RESP2 and RESP3: one command in, one answer out.

As at redis.io/docs/latest/develop/reference/protocol-spec. Limits are smaller than a real server's,
and a client that goes beyond them is answered as a real server would, and loses its connection.
"""

from __future__ import annotations

import asyncio
import shlex
from collections.abc import Mapping, Sequence

from coordinator.core.meeting import VALUE_BYTES_MAX

INLINE_BYTES_MAX = 64 << 10
ARGUMENTS_MAX = 1_024
COMMAND_BYTES_MAX = 256 << 10

Reply = None | int | str | bytes | Sequence["Reply"] | Mapping[str, "Reply"]


class ProtocolError(Exception):
    """What a client sent is no command; its text is a real server's."""


async def read_command(reader: asyncio.StreamReader) -> list[bytes]:
    """The next command's words; empty for an empty line.

    Raises ProtocolError, and EOFError (IncompleteReadError) when the client has gone.
    """
    line = await _line(reader)
    if line[:1] != b"*":
        return _inline(line)
    count = _number(line[1:], ARGUMENTS_MAX, "multibulk")
    words: list[bytes] = []
    left = COMMAND_BYTES_MAX
    for _ in range(count):
        head = await _line(reader)
        if head[:1] != b"$":
            got = head[:1].decode("latin-1")
            raise ProtocolError(f"expected '$', got '{got}'")
        size = _number(head[1:], min(VALUE_BYTES_MAX, left), "bulk")
        words.append((await reader.readexactly(size + 2))[:size])
        left -= size
    return words


async def _line(reader: asyncio.StreamReader) -> bytes:
    try:
        line = await reader.readuntil(b"\n")
    except asyncio.LimitOverrunError:
        raise ProtocolError("too big inline request") from None
    return line.rstrip(b"\r\n")


def _inline(line: bytes) -> list[bytes]:
    if len(line) > INLINE_BYTES_MAX:
        raise ProtocolError("too big inline request")
    try:
        return [word.encode("latin-1") for word in shlex.split(line.decode("latin-1"))]
    except ValueError:
        raise ProtocolError("unbalanced quotes in request") from None


def _number(digits: bytes, most: int, what: str) -> int:
    if not digits.isdigit() or len(digits) > 9 or int(digits) > most:
        raise ProtocolError(f"invalid {what} length")
    return int(digits)


def encode(reply: Reply, protocol: int = 2) -> bytes:
    """An answer: str is a simple string, bytes a bulk string, None nil."""
    if reply is None:
        return b"_\r\n" if protocol == 3 else b"$-1\r\n"
    if isinstance(reply, int):
        return b":%d\r\n" % reply
    if isinstance(reply, str):
        return b"+%b\r\n" % reply.encode()
    if isinstance(reply, bytes):
        return b"$%d\r\n%b\r\n" % (len(reply), reply)
    if isinstance(reply, Mapping):
        flat = [each for name, value in reply.items() for each in (name.encode(), value)]
        head = b"%%%d\r\n" % len(reply) if protocol == 3 else b"*%d\r\n" % len(flat)
        return head + b"".join(encode(each, protocol) for each in flat)
    return b"*%d\r\n" % len(reply) + b"".join(encode(each, protocol) for each in reply)


def error(text: str) -> bytes:
    """An answer that says what went wrong; its first word is the kind of error."""
    one_line = " ".join(text.split())
    return b"-%b\r\n" % one_line.encode(errors="replace")
