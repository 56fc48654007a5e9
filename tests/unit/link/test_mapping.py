"""Errors over the wire and back, also when they are too big for it."""

import json

import grpc
import grpc.aio
import pytest

from coordinator.core.errors import (
    AllstopError,
    BugError,
    DeadlinePassed,
    LinkError,
    NoPlan,
    NotFound,
    StoreError,
    Where,
    all_kinds,
)
from coordinator.core.failures import error_of, failure_of
from coordinator.link.mapping import (
    ERROR_JSON_BYTES_MAX,
    ERROR_METADATA,
    as_allstop,
    error_of_call,
    packed,
)


def call_error(
    code: grpc.StatusCode, details: str, metadata: tuple[tuple[str, bytes], ...] = ()
) -> grpc.aio.AioRpcError:
    return grpc.aio.AioRpcError(
        code, grpc.aio.Metadata(), grpc.aio.Metadata(*metadata), details=details
    )


@pytest.mark.parametrize("kind", sorted(all_kinds()))
def test_every_kind_survives_the_wire(kind: str) -> None:
    error = all_kinds()[kind](
        "what happened",
        where=Where("llm", 2, 5, "node-1", "DUMP"),
        advice="do this",
        definite=False,
        details=("criu: said this",),
    )
    came = error_of_call(
        call_error(grpc.StatusCode.INTERNAL, "x", ((ERROR_METADATA, packed(error)),)), "host:1"
    )
    assert type(came) is all_kinds()[kind]
    assert came.to_fields() == error.to_fields()
    assert error_of(failure_of(error)).to_fields() == error.to_fields()


def test_what_concerns_nobody_in_particular_stays_so() -> None:
    back = error_of(failure_of(AllstopError("x")))
    assert (back.where.worker, back.where.rank) == (None, None)


def test_long_details_are_cut_and_counted() -> None:
    lines = tuple(f"node {index}: {'reason ' * 20}" for index in range(1000))
    data = packed(NoPlan("no node fits", details=lines))
    assert len(data) <= ERROR_JSON_BYTES_MAX
    kept = json.loads(data)["details"]
    assert kept[:-1] == list(lines[: len(kept) - 1])
    assert len(kept) > 10
    assert kept[-1] == f"… and {1000 - (len(kept) - 1)} more lines"


def test_one_endless_line_is_cut() -> None:
    assert len(packed(NotFound("é" * 100_000, advice="y" * 100_000, details=("z" * 100_000,)))) < (
        ERROR_JSON_BYTES_MAX
    )


def test_only_a_connection_that_never_was_is_definite() -> None:
    refused = error_of_call(
        call_error(grpc.StatusCode.UNAVAILABLE, "failed to connect to all addresses"), "a:1"
    )
    broken = error_of_call(call_error(grpc.StatusCode.UNAVAILABLE, "Socket closed"), "a:1")
    assert isinstance(refused, LinkError)
    assert isinstance(broken, LinkError)
    assert (refused.definite, broken.definite) == (True, False)
    late = error_of_call(call_error(grpc.StatusCode.DEADLINE_EXCEEDED, ""), "a:1")
    assert isinstance(late, DeadlinePassed)
    assert not late.definite


def test_damaged_metadata_is_no_second_error() -> None:
    error = error_of_call(
        call_error(grpc.StatusCode.UNAVAILABLE, "gone", ((ERROR_METADATA, b"{no json"),)), "a:1"
    )
    assert isinstance(error, LinkError)


def test_foreign_errors_become_bugs_and_ours_stay() -> None:
    store = StoreError("etcd is away")
    assert as_allstop(store) is store
    assert isinstance(as_allstop(ValueError("x")), BugError)
    assert isinstance(as_allstop(TimeoutError()), DeadlinePassed)
