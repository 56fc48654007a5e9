"""A TCP proxy before etcd that loses the answer of the one transaction that commits."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from enum import StrEnum

MARK = b"committed_unix_s"  # only the value of a snapshot holds it, and only a commit puts one
CHUNK_BYTES = 1 << 16


class Fate(StrEnum):
    """What becomes of the commit and of its connection."""

    APPLIED = "applied, answer lost"
    DROPPED = "dropped on the way"
    KEPT_BACK = "kept back, delivered later"


class Proxy:
    """Passes bytes on both ways until the commit comes by; after that this connection is dead.

    Other connections work, before and after. `struck` is set as soon as the commit was seen.
    """

    def __init__(self, target: str, fate: Fate) -> None:
        """`target` is etcd's `http://host:port`."""
        self._host, _, port = target.removeprefix("http://").partition(":")
        self._port = int(port)
        self._fate = fate
        self.struck = asyncio.Event()
        self.delivered = asyncio.Event()  # set by the test: what was kept back goes through now
        self.arrived = asyncio.Event()  # etcd has said something after that
        self.endpoint = ""
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> Proxy:
        self._server = await asyncio.start_server(self._take, "127.0.0.1", 0)
        host, port = self._server.sockets[0].getsockname()[:2]
        self.endpoint = f"http://{host}:{port}"
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._server is not None
        self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._server.wait_closed()

    async def _take(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        with suppress(OSError, asyncio.CancelledError):
            far_reader, far_writer = await asyncio.open_connection(self._host, self._port)
            dead = asyncio.Event()
            try:
                async with asyncio.TaskGroup() as both:
                    up = both.create_task(self._up(reader, far_writer, dead))
                    down = both.create_task(self._down(far_reader, writer, dead))
                    await asyncio.wait({up, down}, return_when=asyncio.FIRST_COMPLETED)
                    up.cancel()
                    down.cancel()
            finally:
                for each in (writer, far_writer):
                    each.close()

    async def _up(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, dead: asyncio.Event
    ) -> None:
        while data := await reader.read(CHUNK_BYTES):
            if MARK in data and not self.struck.is_set():
                dead.set()
                self.struck.set()
                if self._fate is Fate.KEPT_BACK:
                    await self.delivered.wait()
                if self._fate is Fate.DROPPED:
                    await asyncio.Event().wait()
            writer.write(data)
            await writer.drain()
        if dead.is_set():  # whoever sent it is gone; etcd is not told
            await asyncio.Event().wait()

    async def _down(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, dead: asyncio.Event
    ) -> None:
        while data := await reader.read(CHUNK_BYTES):
            if dead.is_set():
                if self._fate is not Fate.KEPT_BACK or self.delivered.is_set():
                    self.arrived.set()
                continue
            writer.write(data)
            await writer.drain()
