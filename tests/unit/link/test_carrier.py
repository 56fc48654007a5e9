"""The carrier's side: leaders come and go, the shims' streams stay."""

import asyncio

import pytest
from allstop.v1 import carrier_pb2, records_pb2, shim_pb2

from coordinator.codec import to_proto
from coordinator.core.errors import (
    BadRequest,
    Fenced,
    LinkError,
    NoLeader,
)
from coordinator.link.carrier import Carrier
from coordinator.link.mapping import packed
from coordinator.link.stream import ShimStream
from tests.support.carrying import FakeUplink, attached, hello, orders, report, result, sent, turn
from tests.support.fake_node import facts_of


async def test_without_a_leader_shims_are_sent_away() -> None:
    carrier = Carrier("c")
    with pytest.raises(NoLeader, match="no leader yet: this coordinator is still starting"):
        carrier.attach(hello("node-1"))
    carrier.follow(FakeUplink(5))
    carrier.attach(hello("node-1"))
    carrier.unfollow(LinkError("it was killed"))
    with pytest.raises(NoLeader, match="it was killed"):
        carrier.attach(hello("node-2"))


async def test_a_shim_is_welcomed_and_told_of_at_once() -> None:
    carrier, uplink = Carrier("c"), FakeUplink(5)
    carrier.follow(uplink)
    stream = carrier.attach(hello("node-1"))
    await turn()
    assert uplink.said() == [(1, "hello")]
    carrier.take(uplink, orders(5, [1, 9], [3, 4]))  # 9: gone meanwhile
    assert await sent(stream) == ["welcome 5", "order 5 3"]


async def test_a_new_leader_is_announced_on_the_standing_stream_and_hears_a_new_hello() -> None:
    carrier, old, (stream,) = await attached("node-1")
    carrier.say(stream, report(1))
    new = FakeUplink(8)
    carrier.follow(new)
    assert old.closed is not None
    assert await sent(stream) == ["welcome 8"]
    carrier.say(stream, result(0))  # said before it had read the Welcome
    carrier.say(stream, report(2))
    await turn()
    assert (old.said(), new.said()) == ([], [])
    carrier.say(stream, shim_pb2.ShimMessage(hello=hello("node-1", highest_epoch=8)))
    carrier.say(stream, shim_pb2.ShimMessage(exited=shim_pb2.WorkerExited(job="llm")))
    await turn()
    assert new.said() == [(2, "hello"), (2, "exited")]
    assert stream.ending is None
    carrier.take(new, orders(8, [2, 1], [0, 1]))  # attachment 1 was another leader's
    assert await sent(stream) == ["order 8 0"]


async def test_each_welcome_has_its_own_hello() -> None:
    """Two changes of leader in a row: the Hello that answers the first is not for the second."""
    carrier, _, (stream,) = await attached("node-1")
    between, last = FakeUplink(6), FakeUplink(7)
    carrier.follow(between)
    assert await sent(stream) == ["welcome 6"]
    carrier.follow(last)
    assert await sent(stream) == ["welcome 7"]
    carrier.say(stream, shim_pb2.ShimMessage(hello=hello("node-1", highest_epoch=6)))
    carrier.say(stream, report(1))
    await turn()
    assert last.said() == []
    carrier.say(stream, shim_pb2.ShimMessage(hello=hello("node-1", highest_epoch=7)))
    await turn()
    assert (between.said(), last.said()) == ([], [(2, "hello")])


async def test_a_welcome_that_was_taken_back_is_answered_by_nobody() -> None:
    carrier, _, (stream,) = await attached("node-1")
    carrier.follow(FakeUplink(6))  # its Welcome does not go out before the next leader comes
    last = FakeUplink(7)
    carrier.follow(last)
    assert await sent(stream) == ["welcome 7"]
    carrier.say(stream, shim_pb2.ShimMessage(hello=hello("node-1", highest_epoch=7)))
    await turn()
    assert last.said() == [(2, "hello")]


async def test_the_same_leader_may_come_back_and_looks_anew() -> None:
    carrier, first, (stream,) = await attached("node-1")
    carrier.unfollow(LinkError("the cable was cut"), first)
    carrier.say(stream, result(0))
    again = FakeUplink(5)
    carrier.follow(again)
    assert await sent(stream) == ["welcome 5"]
    carrier.say(stream, shim_pb2.ShimMessage(hello=hello("node-1", highest_epoch=5)))
    await turn()
    assert again.said() == [(2, "hello")]


async def test_a_leader_of_the_past_is_not_followed_and_not_heard() -> None:
    carrier, _, (stream,) = await attached("node-1", epoch=5)
    new = FakeUplink(8)
    old = carrier.following
    assert old is not None
    carrier.follow(new)
    with pytest.raises(Fenced, match="epoch 8"):
        carrier.follow(FakeUplink(7))
    assert carrier.following is new
    assert await sent(stream) == ["welcome 8"]
    carrier.say(stream, shim_pb2.ShimMessage(hello=hello("node-1", highest_epoch=8)))
    carrier.take(old, orders(5, [2], [0]))
    carrier.take(old, orders(8, [2], [1]))
    carrier.take(new, orders(5, [2], [2]))
    carrier.take(new, orders(8, [2], [3]))
    assert await sent(stream) == ["order 8 3"]


async def test_orders_of_the_old_leader_that_wait_do_not_go_out() -> None:
    carrier, old, (stream,) = await attached("node-1")
    carrier.take(old, orders(5, [1], [0]))
    carrier.follow(FakeUplink(8))
    assert await sent(stream) == ["welcome 8"]


async def test_what_waits_does_not_go_out_once_the_leaders_right_has_ended() -> None:
    """As after SIGSTOP: the process wakes up with orders in its streams."""
    carrier, uplink, (stream,) = await attached("node-1")
    carrier.take(uplink, orders(5, [1, 1], [0, 1]))
    uplink.over = True
    assert await sent(stream) == []
    carrier.follow(FakeUplink(6))
    assert await sent(stream) == ["welcome 6"]


async def test_a_shim_whose_first_welcome_never_went_out_dials_again() -> None:
    carrier, uplink = Carrier("c"), FakeUplink(5)
    carrier.follow(uplink)
    stream = carrier.attach(hello("node-1"))
    carrier.follow(FakeUplink(6))
    assert isinstance(stream.ending, NoLeader)
    assert carrier.nodes == ()


async def test_a_shim_that_obeyed_a_newer_epoch_is_not_taken() -> None:
    carrier, uplink = Carrier("c"), FakeUplink(5)
    carrier.follow(uplink)
    with pytest.raises(Fenced, match="epoch 6"):
        carrier.attach(hello("node-1", highest_epoch=6))
    await turn()
    assert not uplink.heard
    carrier.attach(hello("node-1", highest_epoch=5))


async def test_a_second_stream_of_a_node_loses_the_first_before_it_attaches() -> None:
    carrier, uplink, (first,) = await attached("node-1")
    second = carrier.attach(hello("node-1"))
    carrier.lose(first, LinkError("its end comes late"))  # must not take the new one away
    carrier.say(first, result(0))
    carrier.leave(first, "too late")
    await turn()
    assert uplink.said() == [(1, "lost"), (2, "hello")]
    assert isinstance(first.ending, Fenced)
    carrier.take(uplink, orders(5, [1, 2], [0, 1]))  # the first one was for the old stream
    assert await sent(second) == ["welcome 5", "order 5 1"]


async def test_the_older_of_two_streams_is_refused_when_it_comes_second() -> None:
    carrier, uplink = Carrier("c"), FakeUplink(5)
    carrier.follow(uplink)
    first, second = hello("node-1"), hello("node-1")
    first.number, second.number = 1, 2
    stream = carrier.attach(second)
    with pytest.raises(Fenced, match="newer stream"):
        carrier.attach(first)
    assert stream.ending is None
    assert carrier.nodes == ("node-1",)


async def test_a_stream_that_is_not_read_ends_with_the_reason() -> None:
    carrier, uplink = Carrier("c", outgoing_max=3), FakeUplink(5)
    carrier.follow(uplink)
    stream = carrier.attach(hello("node-1"))
    carrier.take(uplink, orders(5, [1] * 4, [0, 1, 2, 3]))
    await turn()
    assert uplink.said() == [(1, "hello"), (1, "lost")]
    assert "too slowly" in uplink.heard[-1].said[-1].lost
    assert stream.ending is not None
    assert stream.waiting == 0


async def test_a_dismissed_shim_hears_why_and_the_leader_does_not_hear_of_it_again() -> None:
    carrier, uplink, (stream,) = await attached("node-1")
    why = Fenced("another stream of this node was opened")
    dismissal = carrier_pb2.Dismissal(attachment=1, error=packed(why))
    carrier.take(uplink, carrier_pb2.LeaderMessage(epoch=5, dismissals=[dismissal, dismissal]))
    await turn()
    assert isinstance(stream.ending, Fenced)
    assert uplink.said() == []


@pytest.mark.parametrize(
    "message",
    [
        shim_pb2.ShimMessage(hello=hello("node-1")),
        shim_pb2.ShimMessage(report=shim_pb2.Report(facts=to_proto(facts_of("node-2")))),
        shim_pb2.ShimMessage(report=shim_pb2.Report(workers=[records_pb2.WorkerState(job="../x")])),
    ],
)
async def test_words_that_make_no_sense_are_refused_here(message: shim_pb2.ShimMessage) -> None:
    carrier, uplink, (stream,) = await attached("node-1")
    with pytest.raises(BadRequest):
        carrier.say(stream, message)
    await turn()
    assert uplink.said() == []


async def test_a_sign_of_life_goes_no_further() -> None:
    carrier, uplink, (stream,) = await attached("node-1")
    carrier.say(stream, shim_pb2.ShimMessage())
    await turn()
    assert uplink.heard == []


async def test_the_answer_to_a_welcome_must_be_of_the_same_shim() -> None:
    carrier, _, (stream,) = await attached("node-1")
    carrier.follow(FakeUplink(6))
    assert await sent(stream) == ["welcome 6"]
    for other in (hello("node-2"), hello("node-1", session="s2")):
        with pytest.raises(BadRequest, match="another shim"):
            carrier.say(stream, shim_pb2.ShimMessage(hello=other))
    with pytest.raises(Fenced):
        carrier.say(stream, shim_pb2.ShimMessage(hello=hello("node-1", highest_epoch=7)))


async def test_a_shim_that_does_not_answer_the_new_leader_is_lost() -> None:
    carrier, uplink = Carrier("c", hello_deadline_s=0.02), FakeUplink(5)
    carrier.follow(uplink)
    mute, well = (carrier.attach(hello(node)) for node in ("node-1", "node-2"))
    for stream in (mute, well):
        await sent(stream)
    carrier.follow(FakeUplink(6))
    for stream in (mute, well):
        await sent(stream)
    carrier.say(well, shim_pb2.ShimMessage(hello=hello("node-2", highest_epoch=6)))
    await ended(mute)
    assert "no Hello within" in str(mute.ending)
    assert well.ending is None


async def ended(stream: ShimStream) -> None:
    """Wait until a stream has ended."""
    async with asyncio.timeout(10):
        async for _ in stream.messages():
            pass


async def test_without_a_leader_for_long_shims_are_sent_away() -> None:
    carrier, uplink = Carrier("c", leaderless_s=0.02), FakeUplink(5)
    carrier.follow(uplink)
    stream = carrier.attach(hello("node-1"))
    await sent(stream)
    carrier.unfollow(LinkError("it was killed"))
    assert stream.ending is None
    await ended(stream)
    assert isinstance(stream.ending, NoLeader)
