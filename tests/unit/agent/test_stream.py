"""The stream against a real grpc server in this process."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from allstop.v1 import shim_pb2

from tests.support.fake_coordinator import FakeCoordinator, Peer
from tests.unit.agent.rig import Rig
from worker_shim.agent import stream as streams
from worker_shim.agent.stream import Stream


@contextlib.asynccontextmanager
async def attached(rig: Rig, *addresses: str, welcome_s: float = 5.0) -> AsyncIterator[Stream]:
    stream = Stream(addresses, rig.agent, welcome_s=welcome_s)
    rig.agent.start(stream.send)
    tasks = [asyncio.create_task(work) for work in (stream.run(), rig.agent.reporting())]
    try:
        yield stream
    finally:
        await stream.leave("the test ended", deadline_s=1.0)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def goodbye(peer: Peer) -> str:
    found = await peer.until(lambda m: m.HasField("goodbye") and m.goodbye, 5.0)
    return str(found.reason)


async def test_hello_reports_orders_and_goodbye(rig: Rig, tmp_path: Path) -> None:
    async with FakeCoordinator(f"unix:{tmp_path}/link", epoch=4) as coordinator:
        async with attached(rig, coordinator.address):
            peer = await coordinator.peer("n0")
            assert peer.hello.session == rig.agent.session
            assert [worker.state for worker in peer.hello.workers] == ["running"]
            held = await peer.order("HOLD", "a1", epoch=4, cut="CUT_STEP")
            assert not held.HasField("failure"), held.failure
            assert (await peer.state("held")).action == "a1"
            assert rig.fence.highest == 4
            old = await peer.order("PARK", "a1", epoch=3, target=8)
            assert old.failure.kind == "Fenced"
        assert await goodbye(peer) == "the test ended"


async def test_the_first_that_answers_is_used(rig: Rig, tmp_path: Path) -> None:
    silent = FakeCoordinator(f"unix:{tmp_path}/silent")
    silent.silent = True
    async with silent, FakeCoordinator("127.0.0.1:0") as coordinator:
        nobody = f"unix:{tmp_path}/nobody"
        async with attached(rig, nobody, silent.address, coordinator.address, welcome_s=0.3):
            await coordinator.peer("n0")
        assert silent.streams >= 1


async def test_a_coordinator_that_returns_is_found_again(rig: Rig, tmp_path: Path) -> None:
    address = f"unix:{tmp_path}/link"
    async with attached(rig, address):
        for epoch in (1, 2):
            async with FakeCoordinator(address, epoch=epoch) as coordinator:
                peer = await coordinator.peer("n0")
                assert peer.hello.highest_epoch == epoch - 1
                assert peer.hello.session == rig.agent.session
                peer.hang_up()
                await coordinator.peer("n0", after=peer)
    assert rig.process.state == "S"


async def test_a_leader_of_the_past_is_left(rig: Rig, tmp_path: Path) -> None:
    rig.fence.admit(9)
    async with (
        FakeCoordinator(f"unix:{tmp_path}/old", epoch=8) as old,
        FakeCoordinator(f"unix:{tmp_path}/new", epoch=9) as new,
        attached(rig, old.address, new.address),
    ):
        await new.peer("n0")
    assert old.streams >= 1


async def test_an_answer_given_while_there_was_no_stream_is_given_when_asked_again(
    rig: Rig, tmp_path: Path
) -> None:
    address = f"unix:{tmp_path}/link"
    async with attached(rig, address):
        async with FakeCoordinator(address) as coordinator:
            peer = await coordinator.peer("n0")
            await peer.order("HOLD", "a1", cut="CUT_STEP")
            peer.hang_up()
        async with FakeCoordinator(address) as coordinator:
            peer = await coordinator.peer("n0")
            again = await peer.order("HOLD", "a1", cut="CUT_STEP")
            assert not again.HasField("failure"), again.failure
            assert peer.hello.workers[0].action == "a1"
    assert len(rig.page.raised) == 1


async def test_a_queue_that_is_full_ends_the_stream(
    rig: Rig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(streams, "OUTGOING_MAX", 8)
    async with (
        FakeCoordinator(f"unix:{tmp_path}/link") as coordinator,
        attached(rig, coordinator.address) as stream,
    ):
        first = await coordinator.peer("n0")
        await asyncio.wait_for(rig.agent.welcomed.wait(), 5)
        message = shim_pb2.ShimMessage(report=shim_pb2.Report())
        sent = [stream.send(message) for _ in range(20)]
        assert 0 < sent.count(True) <= 8
        assert not stream.attached
        again = await coordinator.peer("n0", after=first)
        assert [each.state for each in again.hello.workers] == ["running"]  # a report needs news


async def test_fenced_workers_are_killed_and_the_stream_is_kept(rig: Rig, tmp_path: Path) -> None:
    async with (
        FakeCoordinator(f"unix:{tmp_path}/link") as coordinator,
        attached(rig, coordinator.address),
    ):
        peer = await coordinator.peer("n0")
        await peer.order("HOLD", "a1", cut="CUT_STEP")
        fenced = shim_pb2.CoordinatorMessage()
        fenced.fenced.epoch, fenced.fenced.reason = 1, "an older incarnation"
        fenced.fenced.workers.add(job="llm", worker=0)
        fenced.fenced.workers.add(job="nobody", worker=3)
        peer.send(fenced)
        await peer.until(lambda m: m.HasField("report") and not m.report.workers, 5.0)
        assert rig.process.state == ""
        assert not peer.ended
        assert not any(m.HasField("exited") for m in peer.seen)


async def test_a_fence_of_the_past_kills_nobody(rig: Rig) -> None:
    rig.fence.admit(5)
    fenced = shim_pb2.CoordinatorMessage()
    fenced.fenced.epoch = 4
    fenced.fenced.workers.add(job="llm", worker=0)
    rig.agent.on_message(fenced)
    await asyncio.gather(*rig.agent._tasks)
    assert rig.process.state == "S"


async def test_a_worker_is_told_its_incarnation(rig: Rig, tmp_path: Path) -> None:
    async with (
        FakeCoordinator(f"unix:{tmp_path}/link") as coordinator,
        attached(rig, coordinator.address),
    ):
        peer = await coordinator.peer("n0")
        peer.send(admitted(epoch=2, incarnation=4))
        told = await peer.until(
            lambda m: next((w for w in m.report.workers if w.incarnation == 4), None), 5.0
        )
        assert told.state == "running"
        assert rig.page.incarnation == 4


async def test_an_incarnation_never_goes_back(rig: Rig) -> None:
    rig.agent.on_message(admitted(epoch=2, incarnation=4))
    rig.agent.on_message(admitted(epoch=2, incarnation=3))  # late
    rig.agent.on_message(admitted(epoch=1, incarnation=9))  # of a leader of the past
    rig.agent.on_message(admitted(epoch=2, incarnation=9, worker=7))  # of nobody here
    assert rig.worker.incarnation == rig.page.incarnation == 4
    assert [state.worker for state in rig.agent.states()] == [0]


def admitted(*, epoch: int, incarnation: int, worker: int = 0) -> shim_pb2.CoordinatorMessage:
    message = shim_pb2.CoordinatorMessage()
    message.admitted.epoch, message.admitted.job = epoch, "llm"
    message.admitted.worker, message.admitted.incarnation = worker, incarnation
    return message


async def test_a_question_about_files_is_answered(rig: Rig, tmp_path: Path) -> None:
    there = tmp_path / "there"
    there.write_bytes(b"x" * 10)
    async with (
        FakeCoordinator(f"unix:{tmp_path}/link") as coordinator,
        attached(rig, coordinator.address),
    ):
        peer = await coordinator.peer("n0")
        asked = shim_pb2.CoordinatorMessage()
        asked.question.question = 5
        asked.question.files.add(path=str(there), digest="whatever", size_bytes=1)
        asked.question.files.add(path=str(tmp_path / "gone"))
        peer.send(asked)
        answer = await peer.until(lambda m: m.HasField("answer") and m.answer, 5.0)
    assert answer.question == 5
    (file,) = answer.facts.files
    assert (file.path, file.size_bytes, len(file.digest)) == (str(there), 10, 64)


def said(**body: object) -> shim_pb2.ShimMessage:
    return shim_pb2.ShimMessage(**body)  # type: ignore[arg-type]


async def test_results_that_wait_go_together_and_nothing_changes_places() -> None:
    def result(worker: int) -> shim_pb2.ShimMessage:
        return said(result=shim_pb2.OrderResult(worker=worker))

    waiting = [
        result(0),
        result(1),
        said(report=shim_pb2.Report()),
        *(result(worker) for worker in range(2, 2 + streams.JOINED_MAX + 2)),
        said(goodbye=shim_pb2.Goodbye(reason="done")),
        None,
    ]
    queue: streams.Outgoing = asyncio.Queue()
    for message in waiting:
        queue.put_nowait(message)
    sent = [message async for message in streams._requests(queue)]
    kinds = ["results", "report", "results", "result", "goodbye"]
    assert [message.WhichOneof("body") for message in sent] == kinds
    workers = [each.worker for message in sent for each in message.results.results]
    assert [*workers, sent[3].result.worker] == list(range(2 + streams.JOINED_MAX + 2))
    assert queue._unfinished_tasks == 1  # the end, which is nobody's message
