"""Coordination alone: request to commit with instant drivers, everything in one process.

Real gRPC streams over a unix socket, a store in memory, and shims without workers. Coordinator and
shims share one Python process and its one core, so the figures are an upper bound of what the
coordinator costs; `floor_ms` is what a bare echo over the same streams takes for as many star-wide
rounds as a checkpoint has (HOLD, PARK, DUMP, and RESUME with PERSIST).
"""

from __future__ import annotations

import asyncio
import json
import statistics
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import grpc.aio
import structlog
from allstop.v1 import shim_pb2, shim_pb2_grpc

from coordinator.api.client import OperatorClient
from coordinator.server.collecting import collect_seldom
from coordinator.server.testing import running_coordinator
from tests.support.fake_shim import attached

SIZES = (8, 64, 256, 1_024)
ROUNDS = 4  # star-wide rounds of a checkpoint without GPUs; the last one has two answers a shim
CHANNELS_MAX = 16
MEASUREMENTS = {8: 100, 64: 50, 256: 20, 1_024: 10}


@dataclass(frozen=True)
class Coordination:
    """One size: milliseconds from the request to the commit, over `count` checkpoints."""

    shims: int
    count: int
    p50_ms: float
    p99_ms: float
    floor_ms: float  # bare echo of as many rounds over the same kind of streams, p50

    def to_fields(self) -> dict[str, object]:
        """For `--json`."""
        return asdict(self)


def percentile(values: Sequence[float], share: float) -> float:
    """The smallest value that at least `share` of all values do not exceed."""
    ordered = sorted(values)
    return ordered[max(0, -(-round(share * 1000) * len(ordered) // 1000) - 1)]


async def checkpoints(shims: int, count: int) -> list[float]:
    """Milliseconds of `count` checkpoints of a job with so many workers."""
    with tempfile.TemporaryDirectory(prefix="allstop-") as place:
        socket = Path(place) / "sock"
        async with (
            running_coordinator(listen=(), unix_socket=socket) as coordinator,
            attached(coordinator.address, shims, channels=min(CHANNELS_MAX, shims)),
            OperatorClient([coordinator.address]) as client,
        ):
            took = []
            for index in range(count + 1):
                began = time.perf_counter()
                async for _ in client.checkpoint("llm"):
                    pass
                if index:  # the first one warms up
                    took.append((time.perf_counter() - began) * 1000)
            return took


class Echo(shim_pb2_grpc.ShimLinkServicer):
    """Answers nothing by itself: `round` sends one message to every stream and awaits an echo."""

    def __init__(self) -> None:
        self.streams: list[asyncio.Queue[Any]] = []
        self.echoes = 0
        self.all_echoed = asyncio.Event()
        self.arrived = asyncio.Event()

    async def attached(self, shims: int) -> None:
        """Wait until so many streams are open."""
        while len(self.streams) < shims:
            self.arrived.clear()
            await self.arrived.wait()

    async def Attach(  # noqa: N802
        self, request_iterator: AsyncIterator[Any], context: Any
    ) -> AsyncIterator[Any]:
        queue: asyncio.Queue[Any] = asyncio.Queue()
        self.streams.append(queue)
        self.arrived.set()
        reading = asyncio.create_task(self._read(request_iterator))
        try:
            while True:
                yield await queue.get()
        finally:
            reading.cancel()

    async def _read(self, requests: AsyncIterator[Any]) -> None:
        async for _ in requests:
            self.echoes += 1
            if self.echoes == len(self.streams):
                self.all_echoed.set()

    async def round(self) -> None:
        """One star-wide round: everybody is asked, everybody has answered."""
        self.echoes = 0
        self.all_echoed.clear()
        for queue in self.streams:
            queue.put_nowait(shim_pb2.CoordinatorMessage(order=shim_pb2.Order(job="llm")))
        await self.all_echoed.wait()


@asynccontextmanager
async def echoing(shims: int) -> AsyncIterator[Echo]:
    """A bare server and `shims` bare clients, connected as the fake shims are."""
    with tempfile.TemporaryDirectory(prefix="allstop-") as place:
        echo, server, address = Echo(), grpc.aio.server(), f"unix:{place}/sock"
        shim_pb2_grpc.add_ShimLinkServicer_to_server(echo, server)  # type: ignore[no-untyped-call]
        server.add_insecure_port(address)
        await server.start()
        options = [("grpc.use_local_subchannel_pool", 1)]
        channels = [
            grpc.aio.insecure_channel(address, options=options)
            for _ in range(min(CHANNELS_MAX, shims))
        ]
        calls = [_echo(channels[index % len(channels)]) for index in range(shims)]
        tasks = [asyncio.create_task(call) for call in calls]
        async with asyncio.timeout(60):
            await echo.attached(shims)
        try:
            yield echo
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            for channel in channels:
                await channel.close()
            await server.stop(0)


async def _echo(channel: grpc.aio.Channel) -> None:
    call: Any = shim_pb2_grpc.ShimLinkStub(channel).Attach()  # type: ignore[no-untyped-call]
    while (await call.read()) is not grpc.aio.EOF:
        await call.write(shim_pb2.ShimMessage(result=shim_pb2.OrderResult(job="llm")))


async def floor(shims: int, count: int) -> float:
    """Median milliseconds of a checkpoint's rounds as bare echoes."""
    async with echoing(shims) as echo:
        took = []
        for _ in range(count):
            began = time.perf_counter()
            for _ in range(ROUNDS):
                await echo.round()
            took.append((time.perf_counter() - began) * 1000)
        return statistics.median(took)


async def measure(sizes: Sequence[int] = SIZES, *, count: int = 0) -> list[Coordination]:
    """All sizes, one after another; `count` 0: as many checkpoints as suits the size."""
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(40))
    collect_seldom()  # as a coordinator's own process does
    measured = []
    for shims in sizes:
        times = count or MEASUREMENTS.get(shims, 10)
        took = await checkpoints(shims, times)
        measured.append(
            Coordination(
                shims,
                times,
                round(percentile(took, 0.50), 2),
                round(percentile(took, 0.99), 2),
                round(await floor(shims, min(times, 20)), 2),
            )
        )
    return measured


def main() -> None:
    """`python -m bench.coordination [SIZE …]` prints one JSON object per size."""
    sizes = [int(argument) for argument in sys.argv[1:]] or SIZES
    for result in asyncio.run(measure(sizes)):
        print(json.dumps(result.to_fields()), flush=True)


if __name__ == "__main__":
    main()
