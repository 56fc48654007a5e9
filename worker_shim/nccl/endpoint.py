"""Where ranks of this node meet those of others: a small endpoint that speaks Redis on loopback.

NCCL's checkpoint shim polls it by GET until a key is there, so every answer is given at once from
this node's table. Keys without a prefix of an open meeting are refused.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections.abc import Callable
from dataclasses import dataclass, field

import structlog

from coordinator.core.meeting import Key
from worker_shim.nccl.meetings import Meeting, Meetings, Visitor
from worker_shim.nccl.resp import (
    INLINE_BYTES_MAX,
    ProtocolError,
    Reply,
    encode,
    error,
    read_command,
)

log = structlog.get_logger(__name__)

HOST = "127.0.0.1"
CONNECTIONS_MAX = 4_096
IDLE_S = 900.0  # a client that says nothing for so long is left
SHOWN_CHARS = 128

VERSION = "7.0.0"  # whose commands are spoken


class Refused(Exception):
    """A command cannot be carried out; the text is the answer, the kind of error first."""


@dataclass(eq=False)
class _Client:
    visitor: Visitor
    number: int
    protocol: int = 2
    name: bytes = b""
    leaving: bool = False
    met: set[Meeting] = field(default_factory=set)


class Endpoint:
    """The server; it listens from the first `start` to `close`."""

    def __init__(self) -> None:
        """Nothing is opened yet, and no meeting either."""
        self.meetings = Meetings()
        self._server: asyncio.Server | None = None
        self._clients: set[asyncio.Task[None]] = set()
        self._numbers = itertools.count(1)
        self._commands: dict[bytes, Callable[[_Client, list[bytes]], Reply]] = {
            b"PING": _ping, b"ECHO": lambda client, words: words[1], b"HELLO": _hello,
            b"AUTH": _auth, b"SELECT": _select, b"CLIENT": _client, b"INFO": _info,
            b"COMMAND": _command, b"QUIT": _quit, b"GET": self._get, b"SET": self._set,
            b"DEL": self._delete, b"EXISTS": self._exists,
        }  # fmt: skip

    async def start(self) -> int:
        """Listen on the loopback address of this network namespace; return the port.

        Raises OSError. Nothing outside this machine reaches it.
        """
        if self._server is None:
            limit = INLINE_BYTES_MAX
            self._server = await asyncio.start_server(self._serve, HOST, 0, limit=limit)
        return int(self._server.sockets[0].getsockname()[1])

    def close(self) -> None:
        """Listen no more and leave every client."""
        if self._server is not None:
            self._server.close()
            self._server = None
        for task in tuple(self._clients):
            task.cancel()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._clients.add(task)
        client = _Client(Visitor(writer.get_extra_info("peername")[1]), next(self._numbers))
        try:
            if len(self._clients) > CONNECTIONS_MAX:
                writer.write(error("ERR max number of clients reached"))
            else:
                await self._converse(client, reader, writer)
        except (EOFError, OSError, TimeoutError, asyncio.CancelledError):
            pass  # it has gone, or is left
        finally:
            self._clients.discard(task)
            for meeting in client.met:
                meeting.leave(client.visitor)
            writer.close()

    async def _converse(
        self, client: _Client, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        while not client.leaving:
            try:
                async with asyncio.timeout(IDLE_S):
                    words = await read_command(reader)
            except ProtocolError as wrong:
                writer.write(error(f"ERR Protocol error: {wrong}"))
                with contextlib.suppress(OSError):
                    await writer.drain()
                return
            if words:
                writer.write(self._answer(client, words))
                async with asyncio.timeout(IDLE_S):
                    await writer.drain()

    def _answer(self, client: _Client, words: list[bytes]) -> bytes:
        command = self._commands.get(words[0].upper())
        if command is None:
            shown = [word[:SHOWN_CHARS].decode(errors="replace") for word in words[:20]]
            given = " ".join(f"'{word}'" for word in shown[1:])
            return error(f"ERR unknown command '{shown[0]}', with args beginning with: {given}")
        try:
            return encode(command(client, words), client.protocol)
        except Refused as refused:
            return error(str(refused))
        except IndexError:
            name = words[0].decode(errors="replace").lower()
            return error(f"ERR wrong number of arguments for '{name}' command")

    # -- keys --------------------------------------------------------------------------------------

    def _meet(self, client: _Client, full: bytes) -> tuple[Meeting, bytes]:
        found = self.meetings.find(full)
        if found is None:
            raise Refused("NOPERM this key has not the prefix of an open meeting")
        meeting, name = found
        meeting.visitors[client.visitor] = None
        client.met.add(meeting)
        return meeting, name

    def _get(self, client: _Client, words: list[bytes]) -> Reply:
        _require(words, 2)
        meeting, name = self._meet(client, words[1])
        value = meeting.table.get(name)
        if value is None:
            client.visitor.awaited = name
        else:
            client.visitor.awaited = b""
            client.visitor.note(client.visitor.read_keys, name)
        return value

    def _set(self, client: _Client, words: list[bytes]) -> Reply:
        if len(words) > 3:
            raise Refused("ERR syntax error")  # options are not needed here
        value, (meeting, name) = words[2], self._meet(client, words[1])
        if not self.meetings.apply(meeting, Key(name, value)):
            raise Refused("OOM command not allowed when used memory > 'maxmemory'.")
        client.visitor.note(client.visitor.set_keys, name)
        return "OK"

    def _delete(self, client: _Client, words: list[bytes]) -> Reply:
        _require_some(words)
        found = [self._meet(client, full) for full in words[1:]]
        there = [(meeting, name) for meeting, name in found if meeting.table.get(name) is not None]
        for meeting, name in there:
            self.meetings.apply(meeting, Key(name, deleted=True))
        return len(there)

    def _exists(self, client: _Client, words: list[bytes]) -> Reply:
        _require_some(words)
        found = [self._meet(client, full) for full in words[1:]]
        return sum(meeting.table.get(name) is not None for meeting, name in found)


def _require(words: list[bytes], count: int) -> None:
    if len(words) != count:
        raise IndexError


def _require_some(words: list[bytes]) -> None:
    if len(words) < 2:
        raise IndexError


# -- what clients say before and between -----------------------------------------------------------


def _ping(client: _Client, words: list[bytes]) -> Reply:
    return words[1] if len(words) > 1 else "PONG"


def _hello(client: _Client, words: list[bytes]) -> Reply:
    protocol = client.protocol
    if len(words) > 1:
        if words[1] not in (b"2", b"3"):
            raise Refused("NOPROTO unsupported protocol version")
        protocol = int(words[1])
    at = 2
    while at < len(words):
        option = words[at].upper()
        if option == b"AUTH":
            _auth(client, words[at : at + 3])
            at += 3
        elif option == b"SETNAME":
            client.name = words[at + 1]
            at += 2
        else:
            raise Refused(f"ERR Syntax error in HELLO option '{option.decode(errors='replace')}'")
    client.protocol = protocol
    return {
        "server": b"redis",
        "version": VERSION.encode(),
        "proto": protocol,
        "id": client.number,
        "mode": b"standalone",
        "role": b"master",
        "modules": [],
    }


def _auth(client: _Client, words: list[bytes]) -> Reply:
    """As a server without a password: the default user is let in by any, others are not."""
    if len(words) == 2:
        raise Refused(
            "ERR AUTH <password> called without any password configured for the default user. "
            "Are you sure your configuration is correct?"
        )
    _require(words, 3)
    if words[1] != b"default":
        raise Refused("WRONGPASS invalid username-password pair or user is disabled.")
    return "OK"


def _select(client: _Client, words: list[bytes]) -> Reply:
    _require(words, 2)
    if words[1] != b"0":
        raise Refused("ERR DB index is out of range")
    return "OK"


def _client(client: _Client, words: list[bytes]) -> Reply:
    what = words[1].upper()
    if what == b"SETNAME":
        client.name = words[2]
        return "OK"
    if what == b"SETINFO":
        return "OK"
    if what == b"GETNAME":
        return client.name or None
    if what == b"ID":
        return client.number
    raise Refused(f"ERR unknown subcommand '{words[1][:SHOWN_CHARS].decode(errors='replace')}'.")


def _info(client: _Client, words: list[bytes]) -> Reply:
    return f"# Server\r\nredis_version:{VERSION}\r\nredis_mode:standalone\r\n".encode()


def _command(client: _Client, words: list[bytes]) -> Reply:
    """No description of any command: clients then do without hints."""
    what = words[1].upper() if len(words) > 1 else b""
    if what == b"COUNT":
        return 0
    return {} if what == b"DOCS" else []


def _quit(client: _Client, words: list[bytes]) -> Reply:
    client.leaving = True
    return "OK"
