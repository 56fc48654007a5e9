"""The client: several addresses, streams that break, and requests that are never sent twice."""

import asyncio
import socket
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest
from allstop.v1 import operator_pb2, operator_pb2_grpc

from coordinator.api.client import OperatorClient
from coordinator.codec import to_proto
from coordinator.core.errors import BadRequest, LinkError, NotFound, RestoreFailed
from coordinator.core.model import Failure, Phase
from coordinator.link.mapping import abort_with
from tests.support.cluster import cluster, follow
from tests.support.fake_shim import Behaviour

Stream = Callable[[Any], AsyncIterator[operator_pb2.ActionEvent]]


class Scripted(operator_pb2_grpc.OperatorServicer):
    """A coordinator that plays one stream after another, and counts what it was asked."""

    def __init__(self, *streams: Stream) -> None:
        self.streams = list(streams)
        self.asked: list[str] = []

    async def _next(self, name: str, context: Any) -> AsyncIterator[operator_pb2.ActionEvent]:
        self.asked.append(name)
        async for event in self.streams.pop(0)(context):
            yield event

    async def Checkpoint(self, request: Any, context: Any) -> Any:  # noqa: N802
        async for event in self._next(f"checkpoint {request.job}", context):
            yield event

    async def Restore(self, request: Any, context: Any) -> Any:  # noqa: N802
        async for event in self._next(f"restore {request.job}", context):
            yield event

    async def Watch(self, request: Any, context: Any) -> Any:  # noqa: N802
        async for event in self._next(f"watch {request.action}", context):
            yield event

    async def ListJobs(self, request: Any, context: Any) -> Any:  # noqa: N802
        self.asked.append("jobs")
        return operator_pb2.ListJobsReply()


def plays(*states: str, then: Exception | None = None, failure: Failure | None = None) -> Stream:
    async def stream(context: Any) -> AsyncIterator[operator_pb2.ActionEvent]:
        for state in states:
            last = state in ("COMMITTED", "ABORTED", "RUNNING", "FAILED")
            event = operator_pb2.ActionEvent(action="llm-1", state=state, last=last)
            if last and failure is not None:
                event.failure.CopyFrom(to_proto(failure))
            yield event
        if isinstance(then, LinkError | NotFound):
            await abort_with(context, then)
        elif then is not None:
            await context.abort(grpc.StatusCode.UNAVAILABLE, str(then))

    return stream


@asynccontextmanager
async def serving(service: Scripted) -> AsyncIterator[str]:
    server = grpc.aio.server()
    operator_pb2_grpc.add_OperatorServicer_to_server(service, server)  # type: ignore[no-untyped-call]
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        yield f"127.0.0.1:{port}"
    finally:
        await server.stop(0)


def dead_address() -> str:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{probe.getsockname()[1]}"


NO_LEADER = LinkError("no leader yet: c is a candidate")


async def test_the_first_that_answers_is_taken() -> None:
    standby, leader = Scripted(plays(then=NO_LEADER)), Scripted(plays("PARKING", "COMMITTED"))
    async with (
        serving(standby) as first,
        serving(leader) as second,
        OperatorClient([dead_address(), first, second], connect_deadline_s=0.3) as client,
    ):
        went = await follow(client.checkpoint("llm"))
        assert went.error is None
        assert [event.state for event in went.events] == ["PARKING", "COMMITTED"]
        assert (standby.asked, leader.asked) == (["checkpoint llm"], ["checkpoint llm"])
        assert await client.jobs() == ()


async def test_a_refused_connection_is_not_waited_for(tmp_path: Path) -> None:
    leader = Scripted()
    began = time.monotonic()
    async with serving(leader) as address:
        dead = [dead_address(), f"unix:{tmp_path}/nobody", str(tmp_path / "nobody-either")]
        async with OperatorClient([*dead, address], connect_deadline_s=30.0) as client:
            assert await client.jobs() == ()
            assert leader.asked == ["jobs"]
        async with OperatorClient(dead, connect_deadline_s=30.0) as client:
            with pytest.raises(LinkError, match="nobody listens at") as caught:
                await client.jobs()
    assert caught.value.definite
    assert time.monotonic() - began < 15.0


async def test_silence_is_waited_for_as_long_as_was_said() -> None:
    with socket.create_server(("127.0.0.1", 0), backlog=1) as silent:  # accepts, never answers
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        async with OperatorClient([address], connect_deadline_s=0.5) as client:
            began = time.monotonic()
            with pytest.raises(LinkError, match=r"within 0\.5 s"):
                await client.jobs()
            assert time.monotonic() - began >= 0.5


async def test_a_coordinator_that_comes_back_is_found_again() -> None:
    async with OperatorClient(["127.0.0.1:0"]) as client:
        port = int(dead_address().rpartition(":")[2])
        client._addresses = [f"127.0.0.1:{port}"]
        for _ in range(2):
            with pytest.raises(LinkError):
                await client.jobs()
            server, service = grpc.aio.server(), Scripted()
            operator_pb2_grpc.add_OperatorServicer_to_server(service, server)  # type: ignore[no-untyped-call]
            server.add_insecure_port(f"127.0.0.1:{port}")
            await server.start()
            assert await client.jobs() == ()
            await server.stop(0)


async def test_when_nobody_answers_all_are_named() -> None:
    addresses = [dead_address(), dead_address()]
    async with OperatorClient(addresses, connect_deadline_s=0.2) as client:
        with pytest.raises(LinkError) as caught:
            await client.jobs()
    text = f"{caught.value} {caught.value.details}"
    assert all(address in text for address in addresses)
    assert caught.value.definite


async def test_a_socket_that_accepts_and_never_speaks_is_given_up() -> None:
    with socket.socket() as mute:
        mute.bind(("127.0.0.1", 0))
        mute.listen()
        address = f"127.0.0.1:{mute.getsockname()[1]}"
        async with OperatorClient([address], connect_deadline_s=0.3) as client:
            with pytest.raises(LinkError, match="within"):
                async with asyncio.timeout(5):
                    await client.jobs()


async def test_a_broken_stream_is_joined_again_and_the_request_not_repeated() -> None:
    service = Scripted(
        plays("HOLDING", then=RuntimeError("Socket closed")),
        plays(then=NO_LEADER),
        plays("PARKING", then=RuntimeError("Socket closed")),
        plays("COMMITTED"),
    )
    async with serving(service) as address, OperatorClient([address]) as client:
        went = await follow(client.checkpoint("llm"))
    assert went.error is None
    assert [event.state for event in went.events] == ["HOLDING", "PARKING", "COMMITTED"]
    assert service.asked == ["checkpoint llm", *["watch llm-1"] * 3]


async def test_a_stream_that_broke_before_its_first_event_may_have_begun_something() -> None:
    service, other = Scripted(plays(then=RuntimeError("Socket closed"))), Scripted()
    async with (
        serving(service) as first,
        serving(other) as second,
        OperatorClient([first, second]) as client,
    ):
        went = await follow(client.checkpoint("llm"))
    assert isinstance(went.error, LinkError)
    assert not went.error.definite
    assert not other.asked


async def test_once_begun_a_request_goes_to_nobody_else() -> None:
    """Even when the coordinator's own words are that nothing happened."""
    first = Scripted(plays("HOLDING", then=NO_LEADER), plays(then=NO_LEADER))
    second = Scripted(plays("COMMITTED"))
    async with (
        serving(first) as one,
        serving(second) as two,
        OperatorClient([one, two]) as client,
    ):
        went = await follow(client.checkpoint("llm"))
    assert went.error is None
    assert (first.asked, second.asked) == (["checkpoint llm", "watch llm-1"], ["watch llm-1"])


async def test_a_failure_is_raised_after_the_last_event() -> None:
    failure = Failure("RestoreFailed", "criu failed", node="node-1", details=("its words",))
    service = Scripted(plays("RESTORING", "FAILED", failure=failure))
    async with serving(service) as address, OperatorClient([address]) as client:
        went = await follow(client.restore("llm"))
    assert [event.state for event in went.events] == ["RESTORING", "FAILED"]
    assert isinstance(went.error, RestoreFailed)
    assert (went.error.where.node, went.error.details) == ("node-1", ("its words",))


async def test_an_unknown_action_is_not_waited_for() -> None:
    service = Scripted(
        plays("HOLDING", then=RuntimeError("Socket closed")), plays(then=NotFound("no such action"))
    )
    async with serving(service) as address, OperatorClient([address]) as client:
        went = await follow(client.checkpoint("llm"))
    assert isinstance(went.error, NotFound)


async def test_without_an_address_nothing_is_tried() -> None:
    with pytest.raises(BadRequest):
        OperatorClient([])


async def test_closing_a_stream_early_leaves_no_call_behind() -> None:
    behaviours = {0: Behaviour(late_s={Phase.PARK: 0.2})}
    async with cluster(1, behaviours=behaviours) as case:
        stream = case.client.checkpoint("llm")
        action = (await anext(stream)).action
        await stream.aclose()
        watchers = case.coordinator.reign.watchers
        for _ in range(100):
            if not watchers.watched(action):
                break
            await asyncio.sleep(0.01)
        assert not watchers.watched(action)
