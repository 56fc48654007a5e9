"""A new leader speaks on the stream that the shim has: it hears a Hello before anything else."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from allstop.v1 import shim_pb2

from tests.support.fake_coordinator import FakeCoordinator, Peer
from tests.unit.agent.rig import Rig
from tests.unit.agent.test_stream import attached
from worker_shim.agent import stream as streams
from worker_shim.agent.stream import Stream


def welcome(epoch: int) -> shim_pb2.CoordinatorMessage:
    return shim_pb2.CoordinatorMessage(
        welcome=shim_pb2.Welcome(epoch=epoch, coordinator="next", report_interval_ms=50)
    )


async def hello_of(peer: Peer, number: int) -> shim_pb2.Hello:
    found: shim_pb2.Hello = await peer.until(
        lambda m: m.HasField("hello") and m.hello.number == number and m.hello, 5.0
    )
    return found


async def test_the_state_as_it_is_then_is_what_the_new_leader_hears(
    rig: Rig, tmp_path: Path
) -> None:
    async with (
        FakeCoordinator(f"unix:{tmp_path}/link", epoch=4) as coordinator,
        attached(rig, coordinator.address),
    ):
        peer = await coordinator.peer("n0")
        assert peer.hello.number == 1
        held = await peer.order("HOLD", "a1", epoch=4, cut="CUT_STEP")
        assert not held.HasField("failure"), held.failure
        peer.send(welcome(6))
        hello = await hello_of(peer, 2)
        assert (hello.highest_epoch, hello.session) == (6, peer.hello.session)
        assert [(worker.state, worker.action) for worker in hello.workers] == [("held", "a1")]
        old = await peer.order("PARK", "a1", epoch=4, target=8)
        assert old.failure.kind == "Fenced"
        again = await peer.order("HOLD", "a1", epoch=6, cut="CUT_STEP")  # as it was answered before
        assert (again.epoch, again.HasField("failure")) == (6, False)
        assert len(rig.page.raised) == 1
        assert not peer.ended
        assert coordinator.streams == 1


async def test_nothing_is_said_between_the_welcome_and_the_hello(rig: Rig) -> None:
    said: list[str | None] = []

    def send(message: shim_pb2.ShimMessage) -> bool:
        said.append(message.WhichOneof("body"))
        return True

    rig.agent.start(send)
    rig.agent.on_message(welcome(2))
    rig.agent.on_message(welcome(2))  # the same leader, after its link was cut: it looks anew
    await rig.agent.report()
    assert said == ["hello", "hello", "report"]


async def test_a_leader_of_the_past_is_not_taken_on_a_standing_stream(
    rig: Rig, tmp_path: Path
) -> None:
    async with (
        FakeCoordinator(f"unix:{tmp_path}/link", epoch=4) as coordinator,
        attached(rig, coordinator.address),
    ):
        peer = await coordinator.peer("n0")
        await asyncio.wait_for(rig.agent.welcomed.wait(), 5)
        peer.send(welcome(3))
        again = await coordinator.peer("n0", after=peer)
        assert again.hello.highest_epoch == 4
        assert not any(message.HasField("hello") for message in peer.seen)


async def test_a_shim_that_ends_while_its_queue_is_full_ends(
    rig: Rig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both cancel the same reader; the end of the shim must not be taken for the other."""
    monkeypatch.setattr(streams, "OUTGOING_MAX", 8)
    async with FakeCoordinator(f"unix:{tmp_path}/link") as coordinator:
        stream = Stream([coordinator.address], rig.agent)
        rig.agent.start(stream.send)
        running = asyncio.create_task(stream.run())
        await coordinator.peer("n0")
        await asyncio.wait_for(rig.agent.welcomed.wait(), 5)
        message = shim_pb2.ShimMessage(report=shim_pb2.Report())
        while stream.send(message):
            pass
        running.cancel()
        done, _ = await asyncio.wait({running}, timeout=5)
        assert done
        assert running.cancelled()
