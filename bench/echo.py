"""The floor: a bare grpc.aio server that asks every stream and waits until all have answered.

`python -m bench.echo` serves; no allstop is in it, not even a message of it.
"""

from __future__ import annotations

import asyncio
import gc
import time
from collections.abc import Mapping
from typing import Any

import grpc
import grpc.aio

from bench.children import open_files_max, serve
from bench.links import serve_on

METHOD = "/bench.Echo/Stream"
QUESTION, ANSWER = b"q" * 100, b"a" * 200  # about an order and the answer to one


class Server:
    """Holds the streams; a round goes to all of them."""

    def __init__(self) -> None:
        self._contexts: list[Any] = []
        self._missing = 0
        self._all = asyncio.Event()
        self._arrived = asyncio.Event()
        self._server: grpc.aio.Server | None = None

    async def listen(self) -> Mapping[str, Any]:
        """Serve on a free port."""
        self._server = grpc.aio.server()
        handler = grpc.stream_stream_rpc_method_handler(self._stream)
        generic = grpc.method_handlers_generic_handler("bench.Echo", {"Stream": handler})
        self._server.add_generic_rpc_handlers((generic,))
        address = serve_on(self._server)
        await self._server.start()
        return {"address": address}

    async def _stream(self, _: Any, context: Any) -> None:
        self._contexts.append(context)
        await context.write(QUESTION)
        while (await context.read()) is not grpc.aio.EOF:
            self._missing -= 1
            if self._missing == 0:
                self._all.set()

    async def rounds(self, *, count: int) -> Mapping[str, Any]:
        """So many rounds, one after another; milliseconds in all."""
        began = time.perf_counter()
        for _ in range(count):
            self._missing = len(self._contexts)
            self._all.clear()
            writes = [asyncio.ensure_future(each.write(QUESTION)) for each in self._contexts]
            await self._all.wait()
            await asyncio.gather(*writes)
        return {"ms": (time.perf_counter() - began) * 1000, "streams": len(self._contexts)}

    async def settle(self) -> Mapping[str, Any]:
        """All streams are there: leave them out of garbage collection, as a coordinator does."""
        gc.collect()
        gc.freeze()
        return {}


class Client:
    """One stream that answers whatever it is asked."""

    def __init__(self, channel: grpc.aio.Channel) -> None:
        self.connected = asyncio.Event()
        self._channel = channel

    async def run(self) -> None:
        """Until the stream ends."""
        call: Any = self._channel.stream_stream(METHOD)()
        await call.read()
        self.connected.set()
        while (await call.read()) is not grpc.aio.EOF:
            await call.write(ANSWER)


async def main() -> None:
    """Serve until the input ends."""
    open_files_max()
    server = Server()
    await serve({"listen": server.listen, "rounds": server.rounds, "settle": server.settle})


if __name__ == "__main__":
    asyncio.run(main())
