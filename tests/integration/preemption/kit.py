"""Who is told of notices, and servers that misbehave."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field

from worker_shim.preemption.opening import sources_of
from worker_shim.preemption.watching import watch

WAIT_S = 15.0


@dataclass
class Listener:
    """Hears notices as a shim's do."""

    told: list[tuple[str, str, float | None]] = field(default_factory=list)
    off: list[str] = field(default_factory=list)
    empty: bool = False
    _changed: asyncio.Event = field(default_factory=asyncio.Event)

    def node_goes(self, source: str, why: str, left_s: float | None) -> None:
        """The machine goes."""
        self.told.append((source, why, left_s))
        self._changed.set()

    def called_off(self, source: str) -> None:
        """It stays."""
        self.off.append(source)
        self._changed.set()

    async def until(self, condition: Callable[[Listener], bool]) -> None:
        """Wait until it has heard enough."""
        async with asyncio.timeout(WAIT_S):
            while not condition(self):
                self._changed.clear()
                await self._changed.wait()


async def until(condition: Callable[[], bool]) -> None:
    """Wait for something that stays."""
    async with asyncio.timeout(WAIT_S):
        while True:
            if condition():
                return
            await asyncio.sleep(0.02)


@contextlib.asynccontextmanager
async def watching(cloud: str, url: str, *, gpus: bool = False) -> AsyncIterator[Listener]:
    """Watch a cloud's notices at `url` as a shim does."""
    listener = Listener()
    tasks = [
        asyncio.create_task(watch(source)) for source in sources_of(cloud, url, listener, gpus=gpus)
    ]
    try:
        yield listener
        assert not any(task.done() for task in tasks), "it watches no more"
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


@contextlib.asynccontextmanager
async def answering(answer: bytes, *, drip_s: float = 0.0) -> AsyncIterator[str]:
    """A server that says these bytes to whoever connects, one after another with `drip_s`."""

    async def serve(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            for at in range(len(answer)) if drip_s else ():
                writer.write(answer[at : at + 1])
                await writer.drain()
                await asyncio.sleep(drip_s)
            writer.write(b"" if drip_s else answer)
            await writer.drain()
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    finally:
        server.close()
