"""Which of etcd's errors say that surely nothing happened, and which do not."""

import grpc
import pytest
from grpc.aio import AioRpcError, Metadata

from coordinator.store.etcd.mapping import mapped, passing
from coordinator.store.kv import COMPACTED

CODE = grpc.StatusCode


def failed(code: grpc.StatusCode, text: str = "") -> AioRpcError:
    return AioRpcError(code, Metadata(), Metadata(), text)


@pytest.mark.parametrize(
    ("code", "text", "definite"),
    [
        (CODE.UNAVAILABLE, "failed to connect to all addresses; last error: refused", True),
        (CODE.UNAVAILABLE, "Socket closed", False),
        (CODE.UNAVAILABLE, "etcdserver: request timed out", False),
        (CODE.UNAVAILABLE, "etcdserver: leader changed", False),
        (CODE.UNAVAILABLE, "ping timeout", False),
        (CODE.DEADLINE_EXCEEDED, "Deadline Exceeded", False),
        (CODE.CANCELLED, "", False),
        (CODE.UNKNOWN, "", False),
        (CODE.INTERNAL, "", False),
        (CODE.RESOURCE_EXHAUSTED, "etcdserver: mvcc: database space exceeded", True),
        (CODE.RESOURCE_EXHAUSTED, "CLIENT: Received message larger than max (5 vs. 4)", False),
        (CODE.INVALID_ARGUMENT, "etcdserver: too many operations in txn request", True),
        (CODE.NOT_FOUND, "etcdserver: requested lease not found", True),
        (CODE.PERMISSION_DENIED, "etcdserver: permission denied", True),
    ],
)
def test_write_errors_are_definite_only_when_nothing_can_have_happened(
    code: grpc.StatusCode, text: str, definite: bool
) -> None:
    error = mapped(failed(code, text), "write /k", writes=True)
    assert error.definite is definite
    assert code.name in error.what
    assert "write /k" in error.what
    assert mapped(failed(code, text), "read", writes=False).definite


def test_compaction_can_be_told_apart() -> None:
    text = "etcdserver: mvcc: required revision has been compacted"
    assert COMPACTED in mapped(failed(CODE.OUT_OF_RANGE, text), "read", writes=False).details
    future = failed(CODE.OUT_OF_RANGE, "etcdserver: mvcc: required revision is a future revision")
    assert COMPACTED not in mapped(future, "read", writes=False).details


def test_only_passing_errors_are_worth_another_read() -> None:
    assert passing(failed(CODE.UNAVAILABLE))
    assert not passing(failed(CODE.PERMISSION_DENIED))
    assert not passing(failed(CODE.OUT_OF_RANGE))
