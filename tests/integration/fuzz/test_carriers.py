"""Bad words of a carrier, that is of another replica: a clear error, and only its own nodes go."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence

import grpc.aio
import pytest_asyncio
from allstop.v1 import carrier_pb2
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.integration.fuzz.material import damaged, messages
from tests.integration.fuzz.test_shims import OWN, harmless
from tests.integration.fuzz.world import ANSWER_S, World, check_error, world

PATH = "/allstop.v1.CarrierLink/Carry"


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def running() -> AsyncIterator[World]:
    """One coordinator for all examples: what the first one spoils the later ones see."""
    async with world() as made:
        yield made


async def speak(channel: grpc.aio.Channel, said: Sequence[bytes]) -> None:
    """Say all of this on one stream and end it."""

    async def one_by_one() -> AsyncIterator[bytes]:
        for each in said:
            yield each

    try:
        async with asyncio.timeout(ANSWER_S):
            async for _ in channel.stream_stream(PATH)(one_by_one()):
                pass
    except grpc.aio.AioRpcError as error:
        check_error(error)


def hello() -> bytes:
    """Of a replica that nobody knows."""
    greeting = carrier_pb2.CarrierHello(name="other-replica", session="its session")
    return carrier_pb2.CarrierMessage(hello=greeting).SerializeToString()


def without_claims(message: carrier_pb2.CarrierMessage) -> carrier_pb2.CarrierMessage:
    """Its shims are not the nodes of the running job: these could have moved to it."""
    for said in message.said:
        harmless(said.message)
        assert said.message.hello.facts.node not in OWN
    return message


@settings(max_examples=60, deadline=None)
@given(data=st.data())
async def test_any_messages(running: World, data: st.DataObject) -> None:
    before = await running.looks()
    kind = messages(carrier_pb2.CarrierMessage, running.snapshot, "evil").map(without_claims)
    drawn = data.draw(st.lists(kind, min_size=1, max_size=3))
    said = [each.SerializeToString() for each in drawn]
    await speak(running.channel, [hello(), *said] if data.draw(st.booleans()) else said)
    assert await running.looks() == before


@settings(max_examples=40, deadline=None)
@given(data=st.data())
async def test_any_bytes(running: World, data: st.DataObject) -> None:
    before = await running.looks()
    kind = messages(carrier_pb2.CarrierMessage, "evil").map(without_claims)
    raw = data.draw(st.binary(max_size=64) | damaged(kind))
    try:
        carrier_pb2.CarrierMessage.FromString(raw)
    except Exception:
        await speak(running.channel, [hello(), raw])
        await speak(running.channel, [raw])
    assert await running.looks() == before
