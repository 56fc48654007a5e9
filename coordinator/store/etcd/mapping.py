"""The one place where etcd's errors become ours: what surely did not happen, and what may have.

Codes and texts are those of etcd 3.5 (api/v3rpc/rpctypes) and of grpcio.
"""

from __future__ import annotations

from grpc import StatusCode
from grpc.aio import AioRpcError

from coordinator.core.errors import StoreError
from coordinator.store.kv import COMPACTED

# The server looked at the request and refused it before anything was applied.
_REFUSED = frozenset(
    {
        StatusCode.INVALID_ARGUMENT,
        StatusCode.FAILED_PRECONDITION,
        StatusCode.NOT_FOUND,
        StatusCode.ALREADY_EXISTS,
        StatusCode.PERMISSION_DENIED,
        StatusCode.UNAUTHENTICATED,
        StatusCode.UNIMPLEMENTED,
        StatusCode.OUT_OF_RANGE,
    }
)
# The call never left this machine, or etcd refused it because of its size or its disk.
_NEVER_BEGAN = (
    "failed to connect to all addresses",
    "etcdserver: mvcc: database space exceeded",
    "etcdserver: too many requests",
    "grpc: received message larger than max",
    "etcdserver: request is too large",
)
_ADVICE = {
    StatusCode.RESOURCE_EXHAUSTED: "etcd is full or overloaded: see `etcdctl alarm list`",
    StatusCode.UNAUTHENTICATED: "check the client certificate that etcd is to accept",
    StatusCode.PERMISSION_DENIED: "etcd's roles do not let this client write there",
    StatusCode.UNAVAILABLE: "is etcd running, and has it a leader? see `etcdctl endpoint status`",
    StatusCode.DEADLINE_EXCEEDED: "etcd is slow or paused: see `etcdctl endpoint status`",
}


def mapped(error: AioRpcError, what: str, *, writes: bool) -> StoreError:
    """Say what an etcd call that failed means; reads are always definite, having no effect."""
    code, text = error.code(), error.details() or ""
    definite = not writes or code in _REFUSED or text.startswith(_NEVER_BEGAN)
    return StoreError(
        f"etcd: {what}: {code.name}: {text}",
        advice=_ADVICE.get(code, ""),
        definite=definite,
        details=(COMPACTED,) if code is StatusCode.OUT_OF_RANGE and "compacted" in text else (),
    )


def passing(error: AioRpcError) -> bool:
    """Whether the same read may well succeed in a moment."""
    return error.code() in (
        StatusCode.UNAVAILABLE,
        StatusCode.DEADLINE_EXCEEDED,
        StatusCode.CANCELLED,
        StatusCode.UNKNOWN,
        StatusCode.INTERNAL,
    )
