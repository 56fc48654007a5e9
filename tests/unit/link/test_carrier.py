"""The carrier's side: leaders come and go, the shims' streams stay; what is said is gathered."""

import asyncio
from typing import Any

import pytest
from allstop.v1 import carrier_pb2, records_pb2, shim_pb2

from coordinator.codec import number_of, to_proto
from coordinator.core.errors import (
    AllstopError,
    BadRequest,
    Fenced,
    LinkError,
    NoLeader,
)
from coordinator.core.model import Phase
from coordinator.link import gathering
from coordinator.link.carrier import Carrier
from coordinator.link.mapping import packed
from coordinator.link.stream import ShimStream
from tests.support.fake_node import facts_of


class FakeUplink:
    """A leader that keeps what it hears."""

    def __init__(self, epoch: int, coordinator: str = "leader") -> None:
        self.epoch = epoch
        self.coordinator = coordinator
        self.report_interval_ms = 1_000
        self.behind = False
        self.heard: list[carrier_pb2.CarrierMessage] = []
        self.closed: AllstopError | None = None
        self.over = False
        self.news = asyncio.Event()

    def check(self) -> None:
        if self.over:
            raise Fenced("its lease is over")

    def send(self, message: carrier_pb2.CarrierMessage) -> None:
        self.heard.append(message)
        self.news.set()

    def close(self, why: AllstopError) -> None:
        self.closed = why

    def said(self) -> list[tuple[int, str]]:
        return [
            (each.attachment, each.message.WhichOneof("body") or "lost")
            for message in self.heard
            for each in message.said
        ]


def hello(node: str, session: str = "s1", highest_epoch: int = 0) -> shim_pb2.Hello:
    return shim_pb2.Hello(
        facts=to_proto(facts_of(node)), session=session, highest_epoch=highest_epoch
    )


def report(boundary: int = 0, incarnation: int = 1, **body: Any) -> shim_pb2.ShimMessage:
    made = shim_pb2.ShimMessage(report=shim_pb2.Report(**body))
    made.report.workers.add(job="llm", incarnation=incarnation, root_pid=boundary)
    return made


def result(worker: int, phase: Phase = Phase.PARK, **body: Any) -> shim_pb2.ShimMessage:
    return shim_pb2.ShimMessage(
        result=shim_pb2.OrderResult(
            job="llm", worker=worker, action="a", phase=number_of(phase), **body
        )
    )


def orders(
    epoch: int, attachments: list[int], workers: list[int], phase: Phase = Phase.PARK
) -> carrier_pb2.LeaderMessage:
    order = shim_pb2.Order(epoch=epoch, job="llm", action="a", phase=number_of(phase))
    delivery = carrier_pb2.Delivery(
        message=shim_pb2.CoordinatorMessage(order=order),
        attachments=attachments,
        workers=workers,
    )
    return carrier_pb2.LeaderMessage(epoch=epoch, deliveries=[delivery])


async def sent(stream: ShimStream) -> list[str]:
    """What goes to the shim now, in words."""
    words: list[str] = []
    stepping = stream.messages()
    while stream.waiting:
        going = asyncio.ensure_future(anext(stepping))
        await asyncio.sleep(0)
        if not going.done():  # all that was left was refused
            going.cancel()
            break
        message = going.result()
        kind = message.WhichOneof("body")
        if kind == "welcome":
            words.append(f"welcome {message.welcome.epoch}")
        elif kind == "order":
            words.append(f"order {message.order.epoch} {message.order.worker}")
        else:
            words.append(str(kind))
    return words


async def turn() -> None:
    """Let what is due at once happen."""
    for _ in range(3):
        await asyncio.sleep(0)


async def attached(*nodes: str, epoch: int = 5) -> tuple[Carrier, FakeUplink, list[ShimStream]]:
    """A carrier that follows, and shims that have been welcomed."""
    carrier, uplink = Carrier("c"), FakeUplink(epoch)
    carrier.follow(uplink)
    streams = [carrier.attach(hello(node)) for node in nodes]
    for stream in streams:
        assert await sent(stream) == [f"welcome {epoch}"]
    await turn()
    del uplink.heard[:]
    return carrier, uplink, streams


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


async def test_successes_wait_for_their_round_and_travel_together(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(gathering, "RESULTS_WAIT_S", 60.0)
    carrier, uplink, streams = await attached("node-1", "node-2", "node-3")
    carrier.take(uplink, orders(5, [1, 2, 3, 3], [0, 1, 2, 3]))
    carrier.say(streams[0], result(0))
    carrier.say(streams[1], result(1))
    carrier.say(streams[2], result(3))
    await turn()
    assert not uplink.heard
    carrier.say(streams[2], result(2))
    await turn()
    assert [len(message.said) for message in uplink.heard] == [4]


async def test_one_that_is_lost_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gathering, "RESULTS_WAIT_S", 60.0)
    carrier, uplink, streams = await attached("node-1", "node-2", "node-3")
    carrier.take(uplink, orders(5, [1, 2, 3], [0, 1, 2]))
    carrier.say(streams[0], result(0))
    carrier.lose(streams[1], LinkError("gone"))
    await turn()
    assert uplink.said() == [(1, "result"), (2, "lost")]
    carrier.say(streams[2], result(2))
    await turn()
    assert uplink.said()[2:] == [(3, "result")]


async def test_a_failure_goes_at_once_and_takes_along_what_waited(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(gathering, "RESULTS_WAIT_S", 60.0)
    monkeypatch.setattr(gathering, "REPORTS_WAIT_S", 60.0)
    carrier, uplink, streams = await attached("node-1", "node-2", "node-3")
    carrier.take(uplink, orders(5, [1, 2, 3], [0, 1, 2]))
    carrier.say(streams[0], report(1))
    carrier.say(streams[0], result(0))
    carrier.say(streams[1], result(1, failure=records_pb2.Failure(kind="DriverError")))
    await turn()
    assert uplink.said() == [(1, "report"), (1, "result"), (2, "result")]
    assert len(uplink.heard) == 1


async def test_a_slow_one_holds_a_success_up_for_a_moment_only() -> None:
    carrier, uplink, streams = await attached("node-1", "node-2")
    carrier.take(uplink, orders(5, [1, 2], [0, 1]))
    carrier.say(streams[0], result(0))
    uplink.news.clear()
    loop, at = asyncio.get_running_loop(), asyncio.get_running_loop().time()
    async with asyncio.timeout(10):
        await uplink.news.wait()
    assert loop.time() - at >= gathering.RESULTS_WAIT_S / 2
    assert uplink.said() == [(1, "result")]


async def test_in_a_long_round_successes_wait_longer_each_time_and_the_last_does_not() -> None:
    carrier, uplink, streams = await attached(*(f"node-{index}" for index in range(8)))
    gathered, loop = carrier._gathering, asyncio.get_running_loop()
    carrier.take(uplink, orders(5, list(range(1, 9)), list(range(8))))
    waits: list[float] = []
    for worker in range(7):
        carrier.say(streams[worker], result(worker))
        assert gathered._timer is not None
        waits.append(gathered._timer.when() - loop.time())
        gathered.flush()
    assert waits == pytest.approx([0.02, 0.04, 0.08, 0.16, 0.16, 0.16, 0.16], abs=0.015)
    del uplink.heard[:]
    carrier.say(streams[7], result(7))
    await turn()
    assert uplink.said() == [(8, "result")]
    carrier.take(uplink, orders(5, [1, 2], [0, 1], Phase.DUMP))
    carrier.say(streams[0], result(0, Phase.DUMP))
    assert gathered._timer is not None
    assert gathered._timer.when() - loop.time() == pytest.approx(0.02, abs=0.015)


async def test_reports_are_gathered_the_newest_counts_and_facts_are_kept(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(gathering, "REPORTS_WAIT_S", 60.0)
    carrier, uplink, streams = await attached("node-1", "node-2")
    carrier.say(streams[0], report(1, facts=to_proto(facts_of("node-1"))))
    carrier.say(streams[1], report(1))
    carrier.say(streams[0], report(2))
    await turn()
    assert not uplink.heard
    carrier.say(streams[1], shim_pb2.ShimMessage(exited=shim_pb2.WorkerExited(job="llm")))
    await turn()
    assert uplink.said() == [(2, "report"), (1, "report"), (2, "exited")]
    newest = uplink.heard[0].said[1].message.report
    assert (newest.workers[0].root_pid, newest.facts.node) == (2, "node-1")


async def test_a_report_without_news_is_passed_on_now_and_then(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(gathering, "REPORTS_WAIT_S", 0.0)
    carrier, uplink, (stream,) = await attached("node-1")
    for _ in range(3):
        carrier.say(stream, report(1))
        await turn()
    assert len(uplink.heard) == 1
    carrier.say(stream, report(2))
    await turn()
    assert len(uplink.heard) == 2
    monkeypatch.setattr(gathering, "REPEAT_S", 0.0)
    carrier.say(stream, report(2))
    await turn()
    assert len(uplink.heard) == 3


async def test_reports_of_a_worker_that_is_no_jobs_yet_are_all_passed_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(gathering, "REPORTS_WAIT_S", 0.0)
    carrier, uplink, (stream,) = await attached("node-1")
    for _ in range(3):
        carrier.say(stream, report(1, incarnation=0))
        await turn()
    assert len(uplink.heard) == 3


async def test_much_is_split_into_messages_of_bounded_size(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(gathering, "MESSAGE_BYTES", 400)
    carrier, uplink, streams = await attached(*(f"node-{index}" for index in range(8)))
    for stream in streams:
        carrier.say(stream, report(1, facts=to_proto(facts_of(stream.node))))
    carrier.leave(streams[-1], "done")
    await turn()
    assert [attachment for attachment, _ in uplink.said()] == [*range(1, 9), 8]
    assert len(uplink.heard) > 1
    assert all(message.ByteSize() < 1_000 for message in uplink.heard)


async def test_the_end_of_the_process_ends_every_stream() -> None:
    carrier, uplink, streams = await attached("node-1", "node-2")
    carrier.close(LinkError("told to end"))
    assert all(stream.ending is not None for stream in streams)
    assert uplink.closed is not None
    assert carrier.nodes == ()


async def test_orders_that_wait_behind_one_another_go_as_one_message() -> None:
    carrier, uplink, (stream,) = await attached("node-1")
    carrier.take(uplink, orders(5, [1], [0], Phase.RESUME))  # type: ignore[arg-type]
    carrier.take(uplink, orders(5, [1], [1], Phase.PERSIST))  # type: ignore[arg-type]
    joined = stream.next_joined()
    assert joined is not None
    found = [(each.worker, each.phase) for each in joined.orders.orders]
    assert found == [(0, number_of(Phase.RESUME)), (1, number_of(Phase.PERSIST))]
    assert stream.next_joined() is None


async def test_an_order_whose_right_has_ended_is_not_joined() -> None:
    carrier, uplink, (stream,) = await attached("node-1")
    carrier.take(uplink, orders(5, [1], [0]))  # type: ignore[arg-type]
    right_before = iter([None, None])  # for two of the three behind it

    def check() -> None:
        if next(right_before, "over") == "over":
            raise Fenced("its lease is over")

    uplink.check = check  # type: ignore[method-assign]
    for worker in (1, 2, 3):
        carrier.take(uplink, orders(5, [1], [worker]))  # type: ignore[arg-type]
    joined = stream.next_joined()
    assert joined is not None
    assert [each.worker for each in joined.orders.orders] == [0, 1, 2]
    assert stream.next_joined() is None


async def test_results_that_came_together_are_heard_one_by_one() -> None:
    carrier, uplink, (stream,) = await attached("node-1")
    results = [result(0).result, result(1).result]
    carrier.say(stream, shim_pb2.ShimMessage(results=shim_pb2.OrderResults(results=results)))
    await turn()
    assert [word for _, word in uplink.said()] == ["result", "result"]
