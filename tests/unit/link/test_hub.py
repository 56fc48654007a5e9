"""Streams of nodes: who is attached, who is lost, what becomes of slow ones and of questions."""

import asyncio
from collections.abc import AsyncIterator

import pytest
from allstop.v1 import shim_pb2

from coordinator.codec import to_proto
from coordinator.core import commands, events
from coordinator.core.errors import Fenced, LinkError
from coordinator.core.model import Phase
from coordinator.link.hub import Hub
from coordinator.link.stream import ShimStream
from tests.support.fake_node import PROGRAM, facts_of


def hello(node: str, session: str = "s1", highest_epoch: int = 0) -> shim_pb2.Hello:
    return shim_pb2.Hello(
        facts=to_proto(facts_of(node)), session=session, highest_epoch=highest_epoch
    )


def park(node: str) -> commands.SendOrder:
    return commands.SendOrder(node, 5, "llm", 0, "a", Phase.PARK, 1.0, target=9)


def hub_with_log(**options: int) -> tuple[Hub, list[events.Event]]:
    told: list[events.Event] = []
    return Hub(5, "c", told.append, **options), told


async def sent(stream: ShimStream) -> list[str | None]:
    """Everything that is queued on an ended stream."""
    return [message.WhichOneof("body") async for message in stream.messages()]


async def test_welcome_comes_before_any_order() -> None:
    hub, told = hub_with_log()
    stream = hub.attach(hello("node-1"))
    assert hub.order(park("node-1"))
    assert hub.admit(commands.AdmitWorker("node-1", "llm", 0, 3))
    hub.leave(stream, "done")
    assert await sent(stream) == ["welcome", "order", "admitted"]
    assert [type(event) for event in told] == [events.NodeAttached, events.NodeLeft]


async def test_a_node_is_lost_once_and_at_once() -> None:
    hub, told = hub_with_log()
    stream = hub.attach(hello("node-1"))
    hub.lose(stream, LinkError("the stream broke"))
    hub.lose(stream, LinkError("again"))
    hub.leave(stream, "too late")
    assert [type(event) for event in told] == [events.NodeAttached, events.NodeLost]
    assert isinstance(told[1], events.NodeLost)
    assert "the stream broke" in told[1].reason
    assert not hub.order(park("node-1"))
    assert len(told) == 2


async def test_a_second_stream_of_a_node_loses_the_first_before_it_attaches() -> None:
    hub, told = hub_with_log()
    first = hub.attach(hello("node-1"))
    second = hub.attach(hello("node-1"))
    assert [type(event) for event in told] == [
        events.NodeAttached,
        events.NodeLost,
        events.NodeAttached,
    ]
    assert isinstance(first.ending, Fenced)
    hub.lose(first, LinkError("its end comes late"))  # must not take the new one away
    assert hub.order(park("node-1"))
    assert second.waiting == 2


async def test_a_shim_that_obeyed_a_newer_epoch_is_not_taken() -> None:
    hub, told = hub_with_log()
    with pytest.raises(Fenced, match="epoch 6"):
        hub.attach(hello("node-1", highest_epoch=6))
    assert not told
    hub.attach(hello("node-1", highest_epoch=5))


async def test_a_stream_that_is_not_read_ends_with_the_reason() -> None:
    hub, told = hub_with_log(outgoing_max=3)
    stream = hub.attach(hello("node-1"))
    assert [hub.order(park("node-1")) for _ in range(4)] == [True, True, False, False]
    assert isinstance(told[-1], events.NodeLost)
    assert "too slowly" in told[-1].reason
    assert len(told) == 2
    assert await sent(stream) == []


async def test_after_close_nothing_is_told_and_nobody_attaches() -> None:
    hub, told = hub_with_log()
    stream = hub.attach(hello("node-1"))
    hub.close(LinkError("the leadership is over"))
    hub.lose(stream, LinkError("its end"))
    assert [type(event) for event in told] == [events.NodeAttached]
    assert hub.nodes == ()
    with pytest.raises(LinkError, match="over"):
        hub.attach(hello("node-2"))


async def question_of(messages: AsyncIterator[shim_pb2.CoordinatorMessage]) -> shim_pb2.Question:
    async for message in messages:
        if message.WhichOneof("body") == "question":
            return message.question
    raise AssertionError("no question came")


async def test_questions_take_what_comes_in_time() -> None:
    hub, _ = hub_with_log()
    streams = [hub.attach(hello(f"node-{index}")) for index in range(3)]
    asking = asyncio.create_task(hub.ask([PROGRAM], deadline_s=0.2))
    questions = [await question_of(stream.messages()) for stream in streams]
    assert questions[0].files[0].path == PROGRAM.path
    answer = shim_pb2.Answer(question=questions[0].question, facts=to_proto(facts_of("liar")))
    hub.answered(streams[0], answer)
    hub.lose(streams[1], LinkError("gone while asked"))  # and node-2 says nothing
    answers = await asking
    assert [facts.node for facts in answers] == ["node-0"]
    hub.answered(streams[2], shim_pb2.Answer(question=questions[2].question))  # late: dropped


async def test_asking_nobody_answers_at_once() -> None:
    hub, _ = hub_with_log()
    assert await hub.ask([PROGRAM], deadline_s=60) == ()
