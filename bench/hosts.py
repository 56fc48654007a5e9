"""A process full of shims: `python -m bench.hosts` runs some of the shims of a measurement.

Beside each shim it has one client of the bare echo, so that both sides of the comparison have the
same processes and the same number of connections.
"""

from __future__ import annotations

import asyncio
import gc
import sys
from collections.abc import Coroutine, Mapping
from typing import Any

from allstop.v1 import shim_pb2

from bench.children import open_files_max, serve
from bench.echo import Client
from bench.lean_shim import LeanShim
from bench.links import PATIENT, channel_to
from coordinator.link.options import client_options

JOB = "llm"
ATTACHING_MAX = 16  # streams that this process opens at once
ATTACH_TRIES, ATTACH_PAUSE_S = 50, 0.2
NO_LEADER = "no leader yet"
TICK_S = 0.05
SIGN_OF_LIFE = shim_pb2.ShimMessage()
OWN_CONNECTION = ("grpc.use_local_subchannel_pool", 1)


class Host:
    """The shims and echo clients of this process."""

    def __init__(self) -> None:
        self._shims: list[LeanShim] = []
        self._clients: list[Client] = []
        self._tasks: set[asyncio.Task[None]] = set()
        self._opening = asyncio.Semaphore(ATTACHING_MAX)

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def attach(
        self, *, addresses: list[str], first: int, count: int, workers: int, report_s: float
    ) -> Mapping[str, Any]:
        """Attach workers `first`.. to the coordinators, each by a connection of its own."""
        options = [*client_options(PATIENT), OWN_CONNECTION]
        for worker in range(first, first + count):
            channel = channel_to(addresses[worker % len(addresses)], options)
            self._shims.append(LeanShim(channel, JOB, worker, workers))
        self._spawn(self._report(report_s))
        await asyncio.gather(*(self._attach(shim) for shim in self._shims))
        gc.collect()
        gc.freeze()
        gc.disable()  # what is measured is the coordinator
        return self.look()

    async def _attach(self, shim: LeanShim) -> None:
        """A front may answer before it follows the leader: then it is asked again."""
        async with self._opening:
            for _ in range(ATTACH_TRIES):
                self._spawn(shim.run())
                await shim.attached.wait()
                if NO_LEADER not in shim.failure:
                    return
                await asyncio.sleep(ATTACH_PAUSE_S)
                shim.begin_anew()

    async def _report(self, every_s: float) -> None:
        """Every shim gives a sign of life once in `every_s`; they do not speak together."""
        ticks = max(1, round(every_s / TICK_S))
        turn = 0
        while True:
            await asyncio.sleep(TICK_S)
            for shim in self._shims[turn % ticks :: ticks]:
                await shim.say(SIGN_OF_LIFE)
            turn += 1

    async def connect(self, *, address: str, count: int) -> Mapping[str, Any]:
        """Open as many streams to the bare echo."""
        for _ in range(count):
            self._clients.append(Client(channel_to(address, [OWN_CONNECTION])))
        await asyncio.gather(*(self._connect(client) for client in self._clients))
        gc.freeze()
        return {"connected": len(self._clients)}

    async def _connect(self, client: Client) -> None:
        async with self._opening:
            self._spawn(client.run())
            await client.connected.wait()

    def look(self) -> Mapping[str, Any]:
        """What there is; a shim that has lost its stream says why."""
        lost = [shim.failure for shim in self._shims if shim.failure]
        return {"attached": len(self._shims) - len(lost), "lost": lost[:3]}

    async def looked(self) -> Mapping[str, Any]:
        """`look` as an answer."""
        return self.look()


async def main() -> None:
    """Serve until the input ends; the connections end with the process."""
    open_files_max()
    host = Host()
    await serve({"attach": host.attach, "connect": host.connect, "look": host.looked})


if __name__ == "__main__":
    asyncio.run(main())
    sys.exit(0)
