"""What a shim's stream must begin with, and what ends it."""

import asyncio
from typing import Any

import grpc
import grpc.aio
import pytest
from allstop.v1 import shim_pb2, shim_pb2_grpc

from coordinator.codec import to_proto
from coordinator.core.errors import AllstopError, BadRequest, DeadlinePassed, LinkError
from coordinator.core.view import NodeView
from coordinator.link.carrier import Carrier
from coordinator.link.mapping import error_of_call
from coordinator.link.service import LinkService
from coordinator.server.testing import RunningCoordinator, running_coordinator
from tests.support.fake_node import facts_of
from tests.support.fake_shim import FakeShim


def hello(node: str = "node-1", job: str = "") -> shim_pb2.ShimMessage:
    body = shim_pb2.Hello(facts=to_proto(facts_of(node)), session="s")
    if job:
        body.workers.add(job=job, workers=1, state="running", incarnation=1)
    return shim_pb2.ShimMessage(hello=body)


async def refused(coordinator: RunningCoordinator, *messages: shim_pb2.ShimMessage) -> AllstopError:
    """How a stream with these messages ends."""
    async with grpc.aio.insecure_channel(coordinator.address) as channel:
        call: Any = shim_pb2_grpc.ShimLinkStub(channel).Attach()  # type: ignore[no-untyped-call]
        try:
            async with asyncio.timeout(10):
                for message in messages:
                    await call.write(message)
                await call.done_writing()
                while await call.read() is not grpc.aio.EOF:
                    pass
                await call
        except grpc.aio.AioRpcError as error:
            return error_of_call(error, coordinator.address)
        except asyncio.InvalidStateError:
            pass
        code, details = await call.code(), await call.details()
        metadata = await call.trailing_metadata()
        return error_of_call(
            grpc.aio.AioRpcError(code, grpc.aio.Metadata(), metadata, details=details),
            coordinator.address,
        )


async def lost(coordinator: RunningCoordinator) -> NodeView:
    """The one node, once the core has heard of its loss, which was queued before its stream ended.

    That takes some turns of the loop: through the carrier, the hub and the inbox.
    """
    for _ in range(1_000):
        (view,) = coordinator.reign.control.nodes()
        if view.state == "lost":
            break
        await asyncio.sleep(0)
    return view


async def test_the_first_message_must_be_hello() -> None:
    async with running_coordinator() as coordinator:
        error = await refused(coordinator, shim_pb2.ShimMessage(report=shim_pb2.Report()))
        assert isinstance(error, BadRequest)
        assert "Hello" in str(error)
        assert isinstance(await refused(coordinator), BadRequest)


@pytest.mark.parametrize("name", ["", "../etc", "a/b", "-x", "x" * 64, "a b"])
async def test_names_that_cannot_be_keys_or_paths_are_refused(name: str) -> None:
    async with running_coordinator() as coordinator:
        assert isinstance(await refused(coordinator, hello(name)), BadRequest)
        if name:
            assert isinstance(await refused(coordinator, hello(job=name)), BadRequest)
        assert coordinator.reign.control.nodes() == ()


async def test_a_second_hello_loses_the_node_with_the_reason() -> None:
    async with running_coordinator() as coordinator:
        error = await refused(coordinator, hello(), hello())
        assert isinstance(error, BadRequest)
        view = await lost(coordinator)
        assert view.state == "lost"
        assert "second Hello" in view.reason


async def test_half_closing_without_goodbye_is_a_loss() -> None:
    async with running_coordinator() as coordinator:
        error = await refused(coordinator, hello())
        assert isinstance(error, LinkError)
        view = await lost(coordinator)
        assert (view.state, "without Goodbye" in view.reason) == ("lost", True)


async def test_facts_of_another_node_end_the_stream() -> None:
    async with running_coordinator() as coordinator:
        report = shim_pb2.Report(facts=to_proto(facts_of("node-2")))
        error = await refused(coordinator, hello(), shim_pb2.ShimMessage(report=report))
        assert "node-2" in str(error)


async def test_silence_instead_of_hello_is_given_up() -> None:
    async def silence() -> Any:
        await asyncio.Event().wait()
        yield

    service = LinkService(Carrier("c"), hello_deadline_s=0.05)
    with pytest.raises(DeadlinePassed, match="no Hello"):
        await service._hello(silence())


async def test_a_shim_that_says_nothing_is_lost_though_its_connection_stands() -> None:
    """As one whose loop hangs: gRPC goes on answering pings for it."""
    async with running_coordinator(node_lease_s=0.3) as coordinator:
        shim = FakeShim(coordinator.address, "node-1")
        await shim.attach()
        await asyncio.wait({shim._reading}, timeout=10)  # until its stream is ended
        view = await lost(coordinator)
        assert view.state == "lost"
        assert "its lease ran out" in view.reason
        await shim.leave(goodbye=False)


async def test_while_nobody_leads_shims_are_sent_away() -> None:
    async with running_coordinator() as coordinator:
        coordinator.seat.carrier.unfollow(LinkError("nobody leads"))
        shim = FakeShim(coordinator.address, "node-1")
        with pytest.raises(AssertionError, match="no leader yet"):
            await shim.attach()
        await shim.leave(goodbye=False)
