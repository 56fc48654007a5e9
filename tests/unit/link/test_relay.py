"""The stream between a carrier's process and the leader's: real gRPC on unix sockets."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc.aio
import pytest
from allstop.v1 import carrier_pb2, carrier_pb2_grpc, shim_pb2

from coordinator.codec import to_proto
from coordinator.core import commands, events
from coordinator.core.errors import AllstopError, BadRequest, Fenced, LinkError, NoLeader
from coordinator.core.model import Phase
from coordinator.link.hub import Hub
from coordinator.link.mapping import error_of_call
from coordinator.link.relay import RelayService
from coordinator.link.stream import ShimStream
from coordinator.store.election import Leader
from tests.support.fake_node import facts_of
from tests.support.replica import Replica, dial, replica, until


class Leading:
    """A hub behind a relay service; `hub` None: this process does not lead."""

    def __init__(self, address: str, epoch: int = 5) -> None:
        self.address = address
        self.told: list[events.Event] = []
        self.over = False
        self.welcomes = 0
        self.hub: Hub | None = self.reign(epoch)

    def reign(self, epoch: int) -> Hub:
        return Hub(epoch, "leader", self.told.append, check=self.check)

    def check(self) -> None:
        if self.over:
            raise Fenced("its lease is over")

    def present(self) -> Hub:
        if self.hub is None:
            raise NoLeader("no leader yet")
        self.welcomes += 1
        return self.hub

    def as_leader(self, epoch: int = 5) -> Leader:
        return Leader("leader", self.address, epoch)

    def kinds(self) -> list[str]:
        return [type(event).__name__ for event in self.told]


@asynccontextmanager
async def leading(directory: Path, **options: Any) -> AsyncIterator[Leading]:
    made = Leading(f"unix:{directory}/leader")
    server = grpc.aio.server()
    service = RelayService(made.present, **options)
    carrier_pb2_grpc.add_CarrierLinkServicer_to_server(service, server)  # type: ignore[no-untyped-call]
    server.add_insecure_port(made.address)
    await server.start()
    try:
        yield made
    finally:
        await server.stop(0)


def hello(node: str, highest_epoch: int = 0) -> shim_pb2.Hello:
    return shim_pb2.Hello(facts=to_proto(facts_of(node)), session="s", highest_epoch=highest_epoch)


async def attached(one: Replica, node: str) -> tuple[ShimStream, Any]:
    """A shim without gRPC of its own: its stream, and what comes on it after the Welcome."""
    stream = one.carrier.attach(hello(node))
    messages = stream.messages()
    assert (await anext(messages)).HasField("welcome")
    return stream, messages


def park(node: str, reason: str = "") -> commands.SendOrder:
    return commands.SendOrder(node, 5, "llm", 0, "a", Phase.UNDO, 1.0, reason=reason)


async def turns(count: int) -> None:
    """Let the loop turn."""
    for _ in range(count):
        await asyncio.sleep(0)


async def test_orders_go_down_and_words_come_up(tmp_path: Path) -> None:
    async with leading(tmp_path) as leader, replica("c", tmp_path) as one:
        one.leaders.now(leader.as_leader())
        await until(lambda: one.carrier.following)
        stream, messages = await attached(one, "node-1")
        assert leader.hub is not None
        await until(lambda: leader.told)
        assert leader.hub.nodes == ("node-1",)
        assert leader.hub.order(park("node-1"))
        order = (await anext(messages)).order
        assert (order.epoch, order.action) == (5, "a")
        answer = shim_pb2.OrderResult(epoch=5, job="llm", action="a", phase=order.phase)
        one.carrier.say(stream, shim_pb2.ShimMessage(result=answer))
        one.carrier.leave(stream, "done")
        await until(lambda: leader.kinds() == ["NodeAttached", "Undone", "NodeLeft"])


async def test_who_does_not_lead_is_asked_again_until_it_does(tmp_path: Path) -> None:
    async with leading(tmp_path) as leader, replica("c", tmp_path) as one:
        hub, leader.hub = leader.hub, None
        one.leaders.now(leader.as_leader())
        await asyncio.sleep(0)
        leader.hub = hub
        await until(lambda: one.carrier.following)


async def test_a_leader_of_an_older_epoch_is_not_followed(tmp_path: Path) -> None:
    """The process at the address has not noticed yet that its time is over."""
    async with leading(tmp_path) as leader, replica("c", tmp_path) as one:
        one.leaders.now(leader.as_leader(epoch=6))
        await until(lambda: leader.welcomes >= 2)  # it was welcomed once, and has dialled again
        assert one.carrier.following is None
        leader.hub = leader.reign(7)
        await until(lambda: one.carrier.following)
        assert one.carrier.epoch == 7


async def test_ourselves_we_do_not_dial(tmp_path: Path) -> None:
    async with leading(tmp_path) as leader, replica("leader", tmp_path / "x") as one:
        one.leaders.now(leader.as_leader())
        one.leaders.now(None)
        one.leaders.now(leader.as_leader())
        await until(lambda: one.leaders._told.empty())
        assert leader.hub is not None
        assert leader.hub.carriers == ()


async def test_a_cut_loses_the_nodes_at_the_leader_and_the_streams_stay(tmp_path: Path) -> None:
    async with leading(tmp_path) as leader, replica("c", tmp_path) as one:
        one.leaders.now(leader.as_leader())
        await until(lambda: one.carrier.following)
        stream, messages = await attached(one, "node-1")
        await until(lambda: leader.told)
        first = one.carrier.following
        one.leaders.now(None)
        await until(lambda: leader.kinds() == ["NodeAttached", "NodeLost"])
        lost = leader.told[-1]
        assert isinstance(lost, events.NodeLost)
        assert "carrier c" in lost.reason
        assert one.carrier.following is None
        assert stream.ending is None
        one.leaders.now(leader.as_leader())
        await until(lambda: one.carrier.following)
        assert one.carrier.following is not first
        assert (await anext(messages)).welcome.epoch == 5
        one.carrier.say(stream, shim_pb2.ShimMessage(hello=hello("node-1", highest_epoch=5)))
        await until(lambda: leader.kinds() == ["NodeAttached", "NodeLost", "NodeAttached"])


async def test_a_link_that_ends_while_the_leader_changes_is_given_up_for_good(
    tmp_path: Path,
) -> None:
    """Both cancel the same reader in one turn; only one of the two goes on dialling."""
    async with leading(tmp_path) as leader, replica("c", tmp_path) as one:
        for _ in range(3):
            one.leaders.now(leader.as_leader())
            await until(lambda: one.carrier.following)
            one.carrier.unfollow(LinkError("this process leads itself"))
            one.leaders.now(None)
            await turns(2)
        await until(lambda: one.leaders._told.empty())
        assert leader.hub is not None
        await until(lambda: leader.hub is not None and leader.hub.carriers == ())
        one.leaders.now(leader.as_leader())
        await until(lambda: one.carrier.following)


async def test_what_waits_for_a_carrier_does_not_go_after_the_right_has_ended(
    tmp_path: Path,
) -> None:
    async with leading(tmp_path) as leader, replica("c", tmp_path) as one:
        one.leaders.now(leader.as_leader())
        await until(lambda: one.carrier.following)
        stream, _ = await attached(one, "node-1")
        await until(lambda: leader.told)
        assert leader.hub is not None
        leader.hub.order(park("node-1"))
        leader.hub.flush()  # it waits for gRPC now
        leader.over = True
        await until(lambda: one.carrier.following is None)
        assert stream.waiting == 0
        assert stream.ending is None
        assert "epoch 5 has ended" in one.carrier.empty


async def test_the_end_of_the_leadership_ends_the_link_with_the_reason(tmp_path: Path) -> None:
    async with leading(tmp_path) as leader, replica("c", tmp_path) as one:
        one.leaders.now(leader.as_leader())
        await until(lambda: one.carrier.following)
        assert leader.hub is not None
        leader.hub.close(LinkError("another one leads"))
        leader.hub = None
        await until(lambda: one.carrier.following is None)
        assert one.carrier.empty == "another one leads"


async def test_a_carrier_that_does_not_read_is_lost(tmp_path: Path) -> None:
    async with leading(tmp_path, outgoing_max=3) as leader, dial(leader.address) as channel:
        call: Any = carrier_pb2_grpc.CarrierLinkStub(channel).Carry()  # type: ignore[no-untyped-call]
        greeting = carrier_pb2.CarrierHello(name="c", session="x")
        await call.write(carrier_pb2.CarrierMessage(hello=greeting))
        shim = shim_pb2.ShimMessage(hello=hello("node-1"))
        said = carrier_pb2.Said(attachment=1, message=shim)
        await call.write(carrier_pb2.CarrierMessage(said=[said]))
        await until(lambda: leader.told)
        hub = leader.hub
        assert hub is not None
        async with asyncio.timeout(20):
            while hub.order(park("node-1", reason="x" * 1_000_000)):
                await turns(3)
        lost = leader.told[-1]
        assert isinstance(lost, events.NodeLost)
        assert "reads too slowly" in lost.reason
        assert hub.carriers == ()
        call.cancel()


class Deaf(carrier_pb2_grpc.CarrierLinkServicer):
    """A leader that welcomes and then reads nothing."""

    async def Carry(self, request_iterator: Any, context: Any) -> Any:  # noqa: N802
        await anext(request_iterator)
        welcome = carrier_pb2.LeaderWelcome(coordinator="deaf", report_interval_ms=1_000)
        yield carrier_pb2.LeaderMessage(epoch=5, welcome=welcome)
        await asyncio.Event().wait()


async def test_a_leader_that_does_not_read_is_left_and_the_streams_stay(tmp_path: Path) -> None:
    server = grpc.aio.server()
    carrier_pb2_grpc.add_CarrierLinkServicer_to_server(Deaf(), server)  # type: ignore[no-untyped-call]
    server.add_insecure_port(f"unix:{tmp_path}/deaf")
    await server.start()
    try:
        async with replica("c", tmp_path, outgoing_max=80) as one:
            one.leaders.now(Leader("deaf", f"unix:{tmp_path}/deaf", 5))
            await until(lambda: one.carrier.following)
            first = one.carrier.following
            stream, _ = await attached(one, "node-1")
            exited = shim_pb2.WorkerExited(job="llm", log_tail="x" * 100_000)
            slow = False
            async with asyncio.timeout(20):
                while one.carrier.following is first:
                    one.carrier.say(stream, shim_pb2.ShimMessage(exited=exited))
                    await turns(1)
                    slow = slow or one.carrier.behind
            assert slow
            assert stream.ending is None
    finally:
        await server.stop(0)


async def test_a_carrier_that_gives_no_sign_of_life_is_lost(tmp_path: Path) -> None:
    """As one whose loop hangs: gRPC goes on answering pings for it."""
    async with leading(tmp_path, carrier_lease_s=0.5) as leader:
        async with replica("c", tmp_path) as one:
            one.leaders.now(leader.as_leader())
            await until(lambda: one.carrier.following)
            hub, first = leader.hub, one.carrier.following
            assert hub is not None
            await asyncio.sleep(1.0)  # twice its lease: signs of life keep it
            assert one.carrier.following is first
            assert hub.messages_handled == 0
        async with dial(leader.address) as channel:
            call: Any = carrier_pb2_grpc.CarrierLinkStub(channel).Carry()  # type: ignore[no-untyped-call]
            greeting = carrier_pb2.CarrierHello(name="mute", session="x")
            await call.write(carrier_pb2.CarrierMessage(hello=greeting))
            await until(lambda: hub.carriers == ("mute",))
            await until(lambda: hub.carriers == ())
            call.cancel()


@pytest.mark.parametrize(
    "first",
    [
        carrier_pb2.CarrierMessage(),
        carrier_pb2.CarrierMessage(hello=carrier_pb2.CarrierHello(name="c")),
        carrier_pb2.CarrierMessage(hello=carrier_pb2.CarrierHello(name="../c", session="x")),
    ],
)
async def test_a_stream_must_begin_with_a_proper_hello(
    first: carrier_pb2.CarrierMessage, tmp_path: Path
) -> None:
    async with leading(tmp_path) as leader, dial(leader.address) as channel:
        call: Any = carrier_pb2_grpc.CarrierLinkStub(channel).Carry()  # type: ignore[no-untyped-call]
        await call.write(first)
        error: AllstopError | None = None
        try:
            await call.read()
            await call
        except grpc.aio.AioRpcError as failed:
            error = error_of_call(failed, leader.address)
        assert isinstance(error, BadRequest)
