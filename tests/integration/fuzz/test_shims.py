"""Bad words of a shim: a clear error, its own stream ends, and nobody else notices."""

from __future__ import annotations

import asyncio
import itertools

import pytest
from allstop.v1 import records_pb2, shim_pb2
from hypothesis import given, settings
from hypothesis import strategies as st

from coordinator.codec import to_proto
from coordinator.core.errors import BadRequest
from coordinator.core.model import AttemptState, Phase
from coordinator.link.limits import LOG_TAIL_CHARS_MAX, TEXT_CHARS_MAX, check_said
from tests.integration.fuzz.material import damaged, messages
from tests.integration.fuzz.world import World, speak
from tests.support.cluster import cluster, follow
from tests.support.fake_node import facts_of
from tests.support.fake_shim import Behaviour, FakeShim

PATH = "/allstop.v1.ShimLink/Attach"
OWN = ("llm", "node-0", "node-1")  # what this shim may not say of itself: it could be true
numbers = itertools.count()


def hello() -> shim_pb2.ShimMessage:
    """Of a node that nobody knows yet."""
    node = f"evil-{next(numbers)}"
    return shim_pb2.ShimMessage(
        hello=shim_pb2.Hello(facts=to_proto(facts_of(node)), session=f"session of {node}")
    )


def harmless(message: shim_pb2.ShimMessage) -> shim_pb2.ShimMessage:
    """Without claims to be a node or to have a worker of the running job: these could be true."""
    if message.hello.facts.node in OWN:
        message.hello.facts.node = "evil"
    for workers in (message.hello.workers, message.report.workers):
        for worker in workers:
            worker.job = "evil" if worker.job in OWN else worker.job
    return message


@settings(max_examples=100, deadline=None)
@given(data=st.data())
async def test_any_messages_after_hello(running: World, data: st.DataObject) -> None:
    before = await running.looks()
    kind = messages(shim_pb2.ShimMessage, running.snapshot, "evil").map(harmless)
    said = [each.SerializeToString() for each in data.draw(st.lists(kind, min_size=1, max_size=4))]
    heard = await speak(running.channel, PATH, [hello().SerializeToString(), *said])
    assert shim_pb2.CoordinatorMessage.FromString(heard[0]).HasField("welcome")
    assert await running.looks() == before


@settings(max_examples=60, deadline=None)
@given(data=st.data())
async def test_any_first_message(running: World, data: st.DataObject) -> None:
    before = await running.looks()
    first = data.draw(messages(shim_pb2.ShimMessage).map(harmless))
    await speak(running.channel, PATH, [first.SerializeToString()])
    assert await running.looks() == before


@settings(max_examples=60, deadline=None)
@given(data=st.data())
async def test_any_bytes(running: World, data: st.DataObject) -> None:
    before = await running.looks()
    kind = messages(shim_pb2.ShimMessage, "evil").map(harmless)
    raw = data.draw(st.binary(max_size=64) | damaged(kind))
    try:
        harmless(shim_pb2.ShimMessage.FromString(raw))
        readable = True
    except Exception:
        readable = False
    first = data.draw(st.booleans())
    if not readable:  # else it might become a claim that could be true
        await speak(running.channel, PATH, [raw] if first else [hello().SerializeToString(), raw])
    assert await running.looks() == before


async def test_nobody_speaks_for_another_node() -> None:
    """Answers in the right words from the wrong stream complete nothing."""
    async with cluster(2, behaviours={1: Behaviour(mute={Phase.HOLD})}) as case:
        stranger = FakeShim(case.address, "stranger")
        async with stranger:
            asking = asyncio.create_task(follow(case.client.checkpoint("llm")))
            await case.shims[1].until(lambda: bool(case.shims[1].orders))
            order = case.shims[1].orders[0]
            for phase in records_pb2.Phase.values():
                for worker in (0, 1):
                    result = shim_pb2.OrderResult(
                        epoch=order.epoch,
                        job=order.job,
                        worker=worker,
                        action=order.action,
                        phase=phase,
                        ranks=[records_pb2.RankState(rank=worker, boundary=100)],
                    )
                    await stranger.say(result=result)
            exited = shim_pb2.WorkerExited(job="llm", worker=1, incarnation=1, exit_code=1)
            await stranger.say(exited=exited)
            went = await asking
    assert went.last.state == AttemptState.ABORTED
    assert "node-1" in str(went.error)
    assert not any(event.state == AttemptState.PARKING for event in went.events)


async def test_more_bytes_than_can_be_added_up_do_not_break_a_watcher() -> None:
    """Progress of all workers together is told in 64 bits."""
    endless = Behaviour(progress=((2**64 - 1, 2**64 - 1),))
    async with cluster(2, behaviours={0: endless, 1: endless}) as case:
        went = await follow(case.client.checkpoint("llm"))
    assert went.last.state == AttemptState.ABORTED
    assert "done_bytes is 18446744073709551615" in str(went.error)


@pytest.mark.parametrize("number", [2**63 - 1, -(2**63), 2**53 + 1])
async def test_a_step_that_cannot_be_counted_up_costs_its_shim_alone(number: int) -> None:
    """The target is one more than the highest step, and is sent to everybody in 64 bits."""
    async with cluster(2) as case:
        case.shims[0].behaviour.boundary = number
        went = await follow(case.client.checkpoint("llm"))
        assert went.last.state == AttemptState.ABORTED
        assert f"boundary is {number}" in str(went.error)
        assert case.shims[1].ended is None
        assert not case.coordinator.reign._stopped.is_set()


def test_texts_are_cut_and_numbers_are_not() -> None:
    """A failure without end is still a failure; a step beyond all counting is a broken shim."""
    said = shim_pb2.ShimMessage()
    said.result.failure.what = "x" * 10_000_000
    said.result.failure.details.extend(["y" * 10_000] * 1000)
    check_said(said)
    assert len(said.result.failure.what) < TEXT_CHARS_MAX + 10
    assert len(said.SerializeToString()) < 200_000
    said = shim_pb2.ShimMessage(exited=shim_pb2.WorkerExited(log_tail="z" * 1_000_000 + "end"))
    check_said(said)
    assert said.exited.log_tail.endswith("end")
    assert len(said.exited.log_tail) == LOG_TAIL_CHARS_MAX
    said = shim_pb2.ShimMessage()
    said.result.ranks.add(rank=0, boundary=2**63 - 1)
    with pytest.raises(BadRequest, match="boundary"):
        check_said(said)
