"""A coordinator with a running job, what it looks like from all sides, and who speaks to it raw."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import grpc
import grpc.aio

from coordinator.api.client import OperatorClient
from coordinator.core.errors import BugError, all_kinds
from coordinator.link.mapping import ERROR_METADATA, error_of_call
from coordinator.server.testing import RunningCoordinator, running_coordinator
from coordinator.store.memory import MemoryKeyValue, MemoryStore
from tests.support.cluster import QUICK, follow
from tests.support.fake_shim import FakeShim, attached

ANSWER_S = 20.0
WRITE_FAILED = "Internal error from Core"  # the client's own: the call had ended while it wrote
# what gRPC itself says without asking us: too large, cancelled, out of time
GRPC_OWN = {grpc.StatusCode.RESOURCE_EXHAUSTED, grpc.StatusCode.CANCELLED}


@dataclass
class World:
    """Job `llm` runs on node-0 and node-1 and has a snapshot; `kv` is what the store holds."""

    coordinator: RunningCoordinator
    shims: list[FakeShim]
    client: OperatorClient
    kv: MemoryKeyValue
    channel: grpc.aio.Channel
    snapshot: str

    async def looks(self) -> dict[str, Any]:
        """Everything that bad input must not change."""
        jobs = {view.job.job: view for view in await self.client.jobs()}
        nodes = {view.facts.node: view for view in await self.client.nodes()}
        own = {shim.node for shim in self.shims}
        stored = [key for key in self.kv._order if self.kv._now(key) is not None]
        values = {key: self.kv._now(key) for key in stored if "/jobs/llm" in key}
        return {
            "job": jobs.get("llm"),
            "nodes": {node: view for node, view in nodes.items() if node in own},
            "stored": {key: item.value for key, item in values.items() if item is not None},
            "orders": [len(shim.orders) for shim in self.shims],
            "fenced": [len(shim.fenced) for shim in self.shims],
            "ended": [shim.ended for shim in self.shims],
            "reigns": not self.coordinator.reign._stopped.is_set(),
        }


@asynccontextmanager
async def world() -> AsyncIterator[World]:
    """Everything in one process, real gRPC between."""
    kv = MemoryKeyValue()
    async with (
        running_coordinator(store=MemoryStore(kv), policy=QUICK) as coordinator,
        attached(coordinator.address, 2) as shims,
        OperatorClient([coordinator.address]) as client,
    ):
        went = await follow(client.checkpoint("llm"))
        assert went.error is None
        channel = grpc.aio.insecure_channel(
            coordinator.address, options=[("grpc.max_send_message_length", -1)]
        )
        yield World(coordinator, shims, client, kv, channel, went.last.action)
        await channel.close()


def check_error(error: grpc.aio.AioRpcError) -> None:
    """An error of ours with its fields, or one that gRPC gives by itself; never a defect."""
    told = f"{error.code()}: {error.details()}"
    if error.details() == WRITE_FAILED:
        return
    assert error.code() not in (grpc.StatusCode.UNKNOWN, grpc.StatusCode.INTERNAL), told
    if error.code() in GRPC_OWN:
        return
    fields = [value for key, value in error.trailing_metadata() or () if key == ERROR_METADATA]
    assert fields, told
    known = error_of_call(error, "")
    assert type(known).__name__ in all_kinds()
    assert not isinstance(known, BugError), told
    assert known.what


async def speak(channel: grpc.aio.Channel, path: str, said: Sequence[bytes]) -> list[bytes]:
    """Say all of this on one stream, end it, and return what was answered until then."""
    heard: list[bytes] = []
    try:
        async with asyncio.timeout(ANSWER_S):
            async for message in channel.stream_stream(path)(_one_by_one(said)):
                heard.append(message)
    except grpc.aio.AioRpcError as error:
        check_error(error)
    return heard


async def _one_by_one(said: Sequence[bytes]) -> AsyncIterator[bytes]:
    for each in said:
        yield each


async def call_raw(channel: grpc.aio.Channel, method: str, data: bytes, *, stream: bool) -> bool:
    """Call an operator's method with these bytes; True when it was answered without an error."""
    path = f"/allstop.v1.Operator/{method}"
    try:
        async with asyncio.timeout(ANSWER_S):
            if stream:
                call = channel.unary_stream(path)(data)
                async for _ in call:
                    pass
            else:
                await channel.unary_unary(path)(data)
    except grpc.aio.AioRpcError as error:
        check_error(error)
        return False
    return True
