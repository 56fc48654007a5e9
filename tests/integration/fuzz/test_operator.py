"""Bad requests to every method of the operator's service: a clear error, and nothing changed."""

from __future__ import annotations

from typing import Any

import pytest
from allstop.v1 import operator_pb2
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from coordinator.codec import from_proto
from coordinator.core.errors import BadRequest
from coordinator.core.job_policy import JobPolicy, check
from coordinator.core.model import Phase
from coordinator.link.names import check_name
from tests.integration.fuzz.material import damaged, messages
from tests.integration.fuzz.world import World, call_raw
from tests.support.cluster import cluster, follow
from tests.support.fake_shim import Behaviour

METHODS = operator_pb2.DESCRIPTOR.services_by_name["Operator"].methods
CHANGES = (
    *("Checkpoint", "Restore", "Abort", "SetPolicy"),
    *("Delete", "Collect", "Pin", "Verify"),
)


def request_of(method: str) -> type[Any]:
    """The class of a method's request."""
    found = next(each for each in METHODS if each.name == method)
    return getattr(operator_pb2, found.input_type.name)  # type: ignore[no-any-return]


def streams(method: str) -> bool:
    """Whether it answers with a stream."""
    return bool(next(each for each in METHODS if each.name == method).server_streaming)


def makes_sense(method: str, request: Any, snapshot: str) -> bool:
    """Whether a coordinator may rightly do what is asked: not what is tried here."""
    if method == "Checkpoint":
        return request.job == "llm" and request.cut in (0, 1, 2)
    if method in ("Restore", "Delete", "Collect", "SetRetention"):
        return bool(request.job == "llm")
    if method in ("Pin", "Verify"):
        return bool(request.snapshot == snapshot)
    return method == "SetPolicy" and is_policy(request)


def is_policy(request: Any) -> bool:
    """One for a job that there may be; the job need not be there yet."""
    try:
        check_name("job", check(from_proto(request.policy, JobPolicy)).job)
    except BadRequest:
        return False
    return True


@pytest.mark.parametrize("method", [each.name for each in METHODS])
@settings(max_examples=30, deadline=None)
@given(data=st.data())
async def test_any_request(running: World, method: str, data: st.DataObject) -> None:
    before = await running.looks()
    request = data.draw(messages(request_of(method), running.snapshot))
    assume(not makes_sense(method, request, running.snapshot))
    answered = await call_raw(
        running.channel, method, request.SerializeToString(), stream=streams(method)
    )
    assert not (answered and method in CHANGES and method != "Abort"), request
    assert await running.looks() == before


@pytest.mark.parametrize("method", [each.name for each in METHODS])
@settings(max_examples=30, deadline=None)
@given(data=st.data())
async def test_any_bytes(running: World, method: str, data: st.DataObject) -> None:
    before = await running.looks()
    kind = request_of(method)
    raw = data.draw(st.binary(max_size=64) | damaged(messages(kind, running.snapshot)))
    request = kind()
    try:
        request.ParseFromString(raw)
    except Exception:
        request = None
    assume(request is None or not makes_sense(method, request, running.snapshot))
    answered = await call_raw(running.channel, method, raw, stream=streams(method))
    assert request is not None or not answered
    assert await running.looks() == before


@pytest.mark.parametrize("deadline_s", [-1.0, float("nan"), float("inf"), 1e308, -0.5])
@pytest.mark.parametrize("method", ["Checkpoint", "Restore"])
async def test_a_deadline_that_is_none(running: World, method: str, deadline_s: float) -> None:
    before = await running.looks()
    request = request_of(method)(job="llm", deadline_s=deadline_s)
    assert not await call_raw(running.channel, method, request.SerializeToString(), stream=True)
    assert await running.looks() == before


@pytest.mark.parametrize("method", [each.name for each in METHODS])
async def test_a_message_beyond_all_sizes(running: World, method: str) -> None:
    before = await running.looks()
    raw = b"\x0a\x80\x80\x80\x10" + b"x" * (32 << 20)
    assert not await call_raw(running.channel, method, raw, stream=streams(method))
    assert await running.looks() == before


async def test_a_reason_without_end_is_refused() -> None:
    """It would be stored and sent to every shim; the checkpoint goes on without it."""
    async with cluster(2, behaviours={0: Behaviour(late_s={Phase.DUMP: 1.0})}) as case:
        asking = case.client.checkpoint("llm")
        action = (await anext(asking)).action
        await case.shims[0].until(lambda: Phase.DUMP in case.shims[0].phases())
        with pytest.raises(BadRequest, match="a reason of 2000000 characters"):
            await case.client.abort(action, "x" * 2_000_000)
        went = await follow(asking)
        assert went.error is None
