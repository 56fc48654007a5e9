"""Bad words of a carrier, that is of another replica: a clear error, and only its own nodes go."""

from __future__ import annotations

from allstop.v1 import carrier_pb2
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.integration.fuzz.material import damaged, messages
from tests.integration.fuzz.test_shims import OWN, harmless
from tests.integration.fuzz.world import World, speak

PATH = "/allstop.v1.CarrierLink/Carry"


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
    await speak(running.channel, PATH, [hello(), *said] if data.draw(st.booleans()) else said)
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
        await speak(running.channel, PATH, [hello(), raw])
        await speak(running.channel, PATH, [raw])
    assert await running.looks() == before
