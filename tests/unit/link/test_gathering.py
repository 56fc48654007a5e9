"""What shims say and are told travels together, in order, and nothing waits for long."""

import asyncio

import pytest
from allstop.v1 import records_pb2, shim_pb2

from coordinator.codec import number_of, to_proto
from coordinator.core.errors import (
    Fenced,
    LinkError,
)
from coordinator.core.model import Phase
from coordinator.link import gathering
from tests.support.carrying import attached, orders, report, result, turn
from tests.support.fake_node import facts_of


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
