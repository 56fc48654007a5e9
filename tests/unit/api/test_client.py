"""The client: several addresses, streams that break, and requests that are never sent twice."""

import asyncio
import socket
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest
from allstop.v1 import operator_pb2, operator_pb2_grpc

from coordinator.api import client as client_module
from coordinator.api.client import OperatorClient
from coordinator.api.identity import ATTEMPT, RESTORE, chosen_id
from coordinator.codec import to_proto
from coordinator.core.errors import (
    AllstopError,
    BadRequest,
    LinkError,
    NoLeader,
    NotFound,
    RestoreFailed,
)
from coordinator.core.model import Failure, Phase
from coordinator.link.mapping import abort_with
from tests.support.cluster import cluster, follow
from tests.support.fake_shim import Behaviour
from tests.support.operators import serving

Stream = Callable[[Any], AsyncIterator[operator_pb2.ActionEvent]]


class Scripted(operator_pb2_grpc.OperatorServicer):
    """A coordinator that plays one stream after another, and counts what it was asked."""

    def __init__(self, *streams: Stream) -> None:
        self.streams = list(streams)
        self.asked: list[str] = []
        self.ids: list[str] = []  # that requests came with
        self.jobs: list[Exception] = []  # what the next questions for jobs meet

    async def _next(self, name: str, context: Any) -> AsyncIterator[operator_pb2.ActionEvent]:
        self.asked.append(name)
        async for event in self.streams.pop(0)(context):
            yield event

    async def Checkpoint(self, request: Any, context: Any) -> Any:  # noqa: N802
        self.ids.append(request.attempt)
        async for event in self._next(f"checkpoint {request.job}", context):
            yield event

    async def Restore(self, request: Any, context: Any) -> Any:  # noqa: N802
        self.ids.append(request.restore)
        async for event in self._next(f"restore {request.job}", context):
            yield event

    async def Watch(self, request: Any, context: Any) -> Any:  # noqa: N802
        async for event in self._next(f"watch {request.action}", context):
            yield event

    async def ListJobs(self, request: Any, context: Any) -> Any:  # noqa: N802
        self.asked.append("jobs")
        if self.jobs:
            await fails(context, self.jobs.pop(0))
        return operator_pb2.ListJobsReply()


def plays(*states: str, then: Exception | None = None, failure: Failure | None = None) -> Stream:
    async def stream(context: Any) -> AsyncIterator[operator_pb2.ActionEvent]:
        for state in states:
            last = state in ("COMMITTED", "ABORTED", "RUNNING", "FAILED")
            event = operator_pb2.ActionEvent(action="llm-1", state=state, last=last)
            if last and failure is not None:
                event.failure.CopyFrom(to_proto(failure))
            yield event
        if then is not None:
            await fails(context, then)

    return stream


async def fails(context: Any, error: Exception) -> None:
    """End a call with a coordinator's own words, or as a broken connection would."""
    if isinstance(error, AllstopError):
        await abort_with(context, error)
    await context.abort(grpc.StatusCode.UNAVAILABLE, str(error))


def dead_address() -> str:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{probe.getsockname()[1]}"


NO_LEADER = NoLeader("no leader yet: c is a candidate")
BROKEN = RuntimeError("Socket closed")


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
        plays("HOLDING", then=BROKEN),
        plays(then=NO_LEADER),
        plays("PARKING", then=BROKEN),
        plays("COMMITTED"),
    )
    async with serving(service) as address, OperatorClient([address]) as client:
        went = await follow(client.checkpoint("llm"))
    assert went.error is None
    assert [event.state for event in went.events] == ["HOLDING", "PARKING", "COMMITTED"]
    assert service.asked == ["checkpoint llm", *["watch llm-1"] * 3]


@pytest.mark.parametrize("verb", ["checkpoint", "restore"])
async def test_a_request_whose_answer_was_lost_is_looked_for_and_not_repeated(verb: str) -> None:
    not_yet = plays(then=NotFound("no such"))
    first = Scripted(plays(then=BROKEN), plays(then=BROKEN), not_yet, plays(then=NO_LEADER))
    second = Scripted(plays(then=NO_LEADER), plays("PARKING", "COMMITTED"))
    async with (
        serving(first) as one,
        serving(second) as two,
        OperatorClient([one, two]) as client,
    ):
        went = await follow(getattr(client, verb)("llm"))
    assert went.error is None
    assert [event.state for event in went.events] == ["PARKING", "COMMITTED"]
    (identity,) = first.ids
    assert chosen_id(ATTEMPT if verb == "checkpoint" else RESTORE, "llm", identity) == identity
    watch = f"watch {identity}"
    assert first.asked == [f"{verb} llm", watch, watch, watch]
    assert second.asked == [watch, watch]


async def test_of_a_lost_request_without_a_trace_nobody_claims_that_it_began_or_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(client_module, "LOOK_DEADLINE_S", 0.3)
    service = Scripted(plays(then=BROKEN), *[plays(then=NotFound("no such"))] * 20)
    async with serving(service) as address, OperatorClient([address]) as client:
        went = await follow(client.checkpoint("llm"))
    assert isinstance(went.error, LinkError)
    assert not went.error.definite
    assert service.ids[0] in str(went.error)
    assert service.asked.count("checkpoint llm") == 1
    assert len(service.asked) > 2


async def test_of_one_that_was_announced_and_never_recorded_it_is_said_that_it_did_not_begin() -> (
    None
):
    gone = NotFound("no such")
    service = Scripted(plays("ADMITTING", then=BROKEN), plays(then=NO_LEADER), plays(then=gone))
    async with serving(service) as address, OperatorClient([address]) as client:
        went = await follow(client.checkpoint("llm"))
    assert [event.state for event in went.events] == ["ADMITTING"]
    assert isinstance(went.error, LinkError)
    assert went.error.definite
    assert "has not begun" in went.error.what
    assert went.error.advice == "ask again"


async def test_who_answers_without_a_leader_is_asked_again_for_a_while() -> None:
    told: list[str] = []
    service = Scripted(*[plays(then=NO_LEADER)] * 2, plays("COMMITTED"))
    service.jobs = [NO_LEADER, NO_LEADER]
    async with (
        serving(service) as address,
        OperatorClient(
            [dead_address(), address],
            patience_s=20.0,
            on_waiting=lambda error: told.append(str(error)),
        ) as client,
    ):
        assert await client.jobs() == ()
        went = await follow(client.checkpoint("llm"))
    assert went.error is None
    assert service.asked == ["jobs"] * 3 + ["checkpoint llm"] * 3
    assert ["c is a candidate" in each for each in told] == [True, True]  # once each


async def test_patience_has_an_end_and_the_reason_is_that_nobody_leads() -> None:
    service = Scripted()
    service.jobs = [NO_LEADER] * 100
    async with (
        serving(service) as address,
        OperatorClient([address, dead_address()], patience_s=0.5) as client,
    ):
        with pytest.raises(NoLeader, match="candidate") as caught:
            await client.jobs()
    assert caught.value.definite
    assert "nobody listens" in str(caught.value.details)
    assert len(service.asked) > 1


async def test_nobody_anywhere_is_not_waited_for_however_patient() -> None:
    async with OperatorClient([dead_address()], patience_s=3600.0) as client:
        with pytest.raises(LinkError, match="nobody listens"):
            await client.jobs()


async def test_a_question_whose_answer_was_lost_is_asked_of_another() -> None:
    first, second = Scripted(), Scripted()
    first.jobs = [BROKEN]
    async with (
        serving(first) as one,
        serving(second) as two,
        OperatorClient([one, two]) as client,
    ):
        assert await client.jobs() == ()
    assert (first.asked, second.asked) == (["jobs"], ["jobs"])


async def test_a_lost_action_is_given_up_at_last() -> None:
    service = Scripted(plays("HOLDING", then=BROKEN), *[plays(then=BROKEN)] * 100)
    async with (
        serving(service) as address,
        OperatorClient([address], rejoin_deadline_s=0.5) as client,
    ):
        went = await follow(client.checkpoint("llm"))
    assert isinstance(went.error, LinkError)
    assert not went.error.definite
    assert "while following llm-1" in str(went.error)


async def test_the_same_request_twice_is_one_attempt() -> None:
    """As when an answer was lost and somebody repeats the request with the same id."""
    chosen = "llm-20261129-120000-abcdef"
    request = operator_pb2.CheckpointRequest(job="llm", attempt=chosen)
    async with (
        cluster(1) as case,
        grpc.aio.insecure_channel(case.address) as channel,
    ):
        stub = operator_pb2_grpc.OperatorStub(channel)  # type: ignore[no-untyped-call]
        first = [event async for event in stub.Checkpoint(request)]
        again = [event async for event in stub.Checkpoint(request)]
        assert {event.action for event in first + again} == {chosen}
        assert (first[-1].state, [event.state for event in again]) == ("COMMITTED", ["COMMITTED"])
        assert len((await case.client.snapshots("llm")).snapshots) == 1


@pytest.mark.parametrize(
    "chosen", ["x", "llm-1", "other-20261129-120000-abcdef", "llm-20261129-120000-abcde/", "llm"]
)
async def test_an_id_that_is_not_as_ours_are_is_refused(chosen: str) -> None:
    for kind in (ATTEMPT, RESTORE):
        with pytest.raises(BadRequest, match="cannot be the id"):
            chosen_id(kind, "llm", chosen)


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
    service = Scripted(plays("HOLDING", then=BROKEN), plays(then=NotFound("no such action")))
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
