"""A replica that does not lead answers operators all the same, with the leader's own words."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import grpc
import grpc.aio
import pytest
from allstop.v1 import operator_pb2, operator_pb2_grpc

from coordinator.api.channels import Channels
from coordinator.api.client import OperatorClient
from coordinator.api.forwarding import Forwarding
from coordinator.api.service import OperatorService
from coordinator.core.errors import AllstopError, LinkError, NoLeader, NotFound, Refused
from coordinator.core.model import AttemptState, Phase
from coordinator.link.mapping import error_of_call
from coordinator.store.election import Leader
from tests.support.cluster import cluster, follow
from tests.support.fake_shim import Behaviour
from tests.support.operators import serving

WAIT_S = 10.0


class Silent(operator_pb2_grpc.OperatorServicer):
    """A leader that answers nothing, and notes how its calls come and go."""

    def __init__(self) -> None:
        self.left_s: list[float] = []
        self.came = asyncio.Event()
        self.gone = asyncio.Event()

    async def ListJobs(self, request: Any, context: Any) -> Any:  # noqa: N802
        self.left_s.append(context.time_remaining())
        self.came.set()
        try:
            await asyncio.Event().wait()
        finally:
            self.gone.set()

    async def Watch(self, request: Any, context: Any) -> Any:  # noqa: N802
        yield operator_pb2.ActionEvent(action=request.action, state="PARKING")
        await self.ListJobs(request, context)


@asynccontextmanager
async def replica(
    leader: Leader | Callable[[], Leader | None] | None,
    own: Callable[[], OperatorService | None] = lambda: None,
    name: str = "standby",
) -> AsyncIterator[str]:
    channels = Channels(connect_deadline_s=2.0)
    ask = leader if callable(leader) else lambda: leader
    async with serving(Forwarding(name, own=own, leader=ask, channels=channels)) as address:
        yield address
    await channels.close()


def at(address: str) -> Leader:
    return Leader("first", address, 7)


async def outcome(asking: Any) -> object:
    """What a question comes to, an error with all its fields included."""
    try:
        return await asking
    except AllstopError as error:
        return error.to_fields()


async def test_every_question_has_the_same_answer_at_a_replica() -> None:
    async with (
        cluster(2) as case,
        replica(at(case.address)) as address,
        OperatorClient([address]) as client,
    ):
        went = await follow(client.checkpoint("llm"))
        assert went.error is None
        assert went.last.state == AttemptState.COMMITTED
        assert [event.state for event in went.events][-1] == "COMMITTED"
        assert len(went.events) > 3
        taken = went.last.action
        questions: list[Callable[[OperatorClient], Any]] = [
            lambda c: c.nodes(),
            lambda c: c.jobs(),
            lambda c: c.snapshots("llm"),
            lambda c: c.snapshots("no-such-job"),
            lambda c: c.show(taken),
            lambda c: c.show("nothing"),
            lambda c: c.abort(taken),
            lambda c: c.abort("nothing"),
            lambda c: c.plan("llm", "nothing"),
            lambda c: c.plan("no job of that name"),
        ]
        answers = [await outcome(ask(client)) for ask in questions]
        assert answers == [await outcome(ask(case.client)) for ask in questions]
        assert [type(each) is dict for each in answers].count(True) == 5
        assert (await client.plan("llm")).plan is not None
        restored = await follow(client.restore("llm"))
        assert restored.error is None
        assert (await follow(client.watch(taken))).last.state == AttemptState.COMMITTED


async def test_a_failure_comes_through_with_all_its_words() -> None:
    behaviours = {1: Behaviour(fail={Phase.DUMP: "Error (criu/files.c:1): no such luck"})}
    async with (
        cluster(2, behaviours=behaviours) as case,
        replica(at(case.address)) as address,
        OperatorClient([address]) as client,
    ):
        went = await follow(client.checkpoint("llm"))
        assert went.error is not None
        assert went.error.where.node == "node-1"
        assert "no such luck" in str(went.error.details)
        with pytest.raises(NotFound):
            await follow_or_raise(client, "nothing")
        with pytest.raises(Refused):
            await client.plan("llm", went.last.action)


async def follow_or_raise(client: OperatorClient, action: str) -> None:
    async for _ in client.watch(action):
        pass


async def test_a_deadline_is_passed_on_and_so_is_leaving() -> None:
    leader = Silent()
    async with (
        serving(leader) as place,
        replica(at(place)) as address,
        grpc.aio.insecure_channel(address) as channel,
        asyncio.timeout(WAIT_S),
    ):
        stub = operator_pb2_grpc.OperatorStub(channel)  # type: ignore[no-untyped-call]
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await stub.ListJobs(operator_pb2.ListJobsRequest(), timeout=2.0)
        assert caught.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
        assert 0 < leader.left_s[0] <= 2.0
        await leader.gone.wait()
        for leave in ("cancel the call", "close the channel"):
            leader.came.clear()
            leader.gone.clear()
            watching = stub.Watch(operator_pb2.WatchRequest(action="llm-1"))
            assert (await watching.read()).state == "PARKING"
            await leader.came.wait()
            if leave == "cancel the call":
                watching.cancel()
            else:
                await channel.close()
            await leader.gone.wait()


async def test_two_that_take_each_other_for_the_leader_play_no_ball() -> None:
    other: list[str] = []
    async with (
        replica(lambda: at(other[0]), name="one") as first,
        replica(at(first), name="two") as second,
        OperatorClient([first]) as client,
    ):
        other.append(second)
        with pytest.raises(NoLeader, match="one takes two for the leader"):
            await client.jobs()
        went = await follow(client.checkpoint("llm"))
        assert isinstance(went.error, NoLeader)
        assert went.error.definite


@pytest.mark.parametrize(
    ("leader", "words"),
    [
        (None, "knows of none"),
        (Leader("old", "", 3), "old leads and has not said where"),
        (Leader("dead", "127.0.0.1:1", 3), "dead leads and is not reached from standby"),
    ],
)
async def test_without_a_leader_to_ask_it_says_so(leader: Leader | None, words: str) -> None:
    async with replica(leader) as address, OperatorClient([address]) as client:
        with pytest.raises(NoLeader, match=words):
            await client.jobs()
        went = await follow(client.checkpoint("llm"))
        assert isinstance(went.error, NoLeader)
        assert went.error.definite


async def test_a_leader_that_dies_in_the_middle_is_no_answer() -> None:
    async with replica(lambda: at(places[-1])) as address:
        places: list[str] = []
        async with serving(Silent()) as place:
            places.append(place)
            channel = grpc.aio.insecure_channel(address)
            stub = operator_pb2_grpc.OperatorStub(channel)  # type: ignore[no-untyped-call]
            watching = stub.Watch(operator_pb2.WatchRequest(action="llm-1"))
            assert (await watching.read()).state == "PARKING"
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            async with asyncio.timeout(WAIT_S):
                await watching.read()
        await channel.close()
    error = error_of_call(caught.value, address)
    assert isinstance(error, LinkError)
    assert not error.definite


async def test_a_leader_answers_by_itself() -> None:
    async with cluster(1) as case:
        own = OperatorService(lambda: case.coordinator.reign.desk)
        async with (
            replica(at("127.0.0.1:1"), own=lambda: own) as address,
            OperatorClient([address]) as client,
        ):
            assert (await follow(client.checkpoint("llm"))).error is None
            assert len(await client.jobs()) == 1
