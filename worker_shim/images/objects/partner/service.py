"""The side that keeps: a gRPC server in threads of its own, away from the agent's loop."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import grpc
from allstop.v1 import partner_pb2, partner_pb2_grpc

from coordinator.core.errors import AllstopError, Forbidden, SetupError
from coordinator.security.holders import holder
from coordinator.security.roles import require
from worker_shim.images.objects.names import checked_object
from worker_shim.images.objects.partner.belonging import Belonging
from worker_shim.images.objects.partner.keeping import Keeping
from worker_shim.images.objects.port import ObjectMissing, ObjectStore

THREADS = 8
PIECE_BYTES = 1 << 20
OBJECT_BYTES_MAX = 1 << 30
CALL_S_MAX = 600.0
PAGE_OBJECTS = 1_000
MESSAGE_BYTES_MAX = 4 << 20
# A frozen or cut-off peer is noticed after time + timeout; `ping_timeout_ms` is what grpc obeys.
OPTIONS = (
    ("grpc.keepalive_time_ms", 2_000),
    ("grpc.keepalive_timeout_ms", 4_000),
    ("grpc.http2.ping_timeout_ms", 4_000),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.http2.min_recv_ping_interval_without_data_ms", 1_000),
    ("grpc.http2.max_ping_strikes", 0),
    ("grpc.max_receive_message_length", MESSAGE_BYTES_MAX),
    ("grpc.so_reuseport", 0),
)


class PartnerService(partner_pb2_grpc.PartnerServicer):
    """Keeps, reads, lists and removes for shims of the same ring.

    Reads also what the node has of its own, since a snapshot may be restored on any node.
    """

    def __init__(self, belonging: Belonging, own: ObjectStore, kept: Keeping) -> None:
        """Answers whoever belongs to the same ring."""
        self._belonging, self._own, self._kept = belonging, own, kept

    def Keep(  # noqa: N802
        self, request_iterator: Iterator[partner_pb2.KeepPiece], context: grpc.ServicerContext
    ) -> partner_pb2.Kept:
        """Take an object whole, then write it; one that is there is compared."""
        _require_shim(context, "Keep")
        first = next(request_iterator, None)
        if first is None:
            context.abort(grpc.StatusCode.INVALID_ARGUMENT, "no object")
        self._require(context, first.ring, first.name)
        if not 0 <= first.size_bytes <= OBJECT_BYTES_MAX:
            context.abort(grpc.StatusCode.INVALID_ARGUMENT, "an object of that size is not kept")
        with _answering(context):
            if first.size_bytes > self._kept.free_bytes():
                context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, "no room left for others")
        parts, come = [first.data], len(first.data)
        for piece in request_iterator:
            parts.append(piece.data)
            come += len(piece.data)
            if come > first.size_bytes:
                break
        if come != first.size_bytes:
            context.abort(grpc.StatusCode.INVALID_ARGUMENT, "not the bytes that were announced")
        with _answering(context):
            made = self._kept.put(first.name, parts)
            same = made or self._kept.get(first.name) == b"".join(parts)
            return partner_pb2.Kept(made=made, same=same, free_bytes=self._kept.free_bytes())

    def Read(  # noqa: N802
        self, request: partner_pb2.ReadPart, context: grpc.ServicerContext
    ) -> Iterator[partner_pb2.ObjectPiece]:
        """Piece by piece, each read from the disk when it is its turn."""
        _require_shim(context, "Read")
        self._require(context, request.ring, request.name)
        with _answering(context):
            size = self._either(lambda store: store.size(request.name))
        at, end = request.start, size
        if not request.to_end:
            end = min(size, at + request.length)
        while at < end:
            want, start = min(PIECE_BYTES, end - at), at

            def read(store: ObjectStore | Keeping, start: int = start, want: int = want) -> bytes:
                return store.get(request.name, start=start, length=want)

            with _answering(context):
                data = self._either(read)
            if not data:
                context.abort(grpc.StatusCode.DATA_LOSS, f"{request.name} ended too early")
            yield partner_pb2.ObjectPiece(data=data)
            at += len(data)

    def Size(  # noqa: N802
        self, request: partner_pb2.ObjectName, context: grpc.ServicerContext
    ) -> partner_pb2.ObjectSize:
        """In bytes."""
        _require_shim(context, "Size")
        self._require(context, request.ring, request.name)
        with _answering(context):
            size = self._either(lambda store: store.size(request.name))
            return partner_pb2.ObjectSize(size_bytes=size)

    def ListObjects(  # noqa: N802
        self, request: partner_pb2.ObjectPrefix, context: grpc.ServicerContext
    ) -> Iterator[partner_pb2.ObjectPage]:
        """Own ones and those of others; one that both have comes twice."""
        _require_shim(context, "ListObjects")
        self._require(context, request.ring)
        page = partner_pb2.ObjectPage()
        with _answering(context):
            for store in (self._own, self._kept):
                for each in store.list(request.prefix):
                    page.objects.add(
                        name=each.name,
                        size_bytes=each.size_bytes,
                        modified_unix_s=each.modified_unix_s,
                    )
                    if len(page.objects) == PAGE_OBJECTS:
                        yield page
                        page = partner_pb2.ObjectPage()
        yield page

    def Remove(  # noqa: N802
        self, request: partner_pb2.ObjectName, context: grpc.ServicerContext
    ) -> partner_pb2.Removed:
        """An object is removed wherever it is: whoever removes it does so for the whole ring."""
        _require_shim(context, "Remove")
        self._require(context, request.ring, request.name)
        with _answering(context):
            self._own.delete(request.name)
            self._kept.delete(request.name)
            return partner_pb2.Removed(free_bytes=self._kept.free_bytes())

    def _either(self, ask: Callable[[ObjectStore | Keeping], bytes | int]) -> Any:
        try:
            return ask(self._own)
        except ObjectMissing:
            return ask(self._kept)

    def _require(self, context: grpc.ServicerContext, ring: str, name: str | None = None) -> None:
        if why := self._belonging.refusal(ring, name):
            context.abort(grpc.StatusCode.FAILED_PRECONDITION, why)
        left = context.time_remaining()
        if left is None or left > CALL_S_MAX:
            context.abort(grpc.StatusCode.INVALID_ARGUMENT, "a call without a deadline")
        if name is not None:
            with _answering(context):
                checked_object(name)


@contextmanager
def _answering(context: grpc.ServicerContext) -> Iterator[None]:
    """What goes wrong on this disk becomes a status; `client` makes of it what it was."""
    try:
        yield
    except ObjectMissing as error:
        context.abort(grpc.StatusCode.NOT_FOUND, error.what)
    except AllstopError as error:
        full = error.what.startswith("no room")
        status = grpc.StatusCode.RESOURCE_EXHAUSTED if full else grpc.StatusCode.INTERNAL
        context.abort(status, error.what)


def _require_shim(context: grpc.ServicerContext, method: str) -> None:
    """Only shims of the cluster, where the connection has certificates to tell it."""
    try:
        found = holder(context)
        if found is not None:
            require(found, f"/allstop.v1.Partner/{method}")
    except Forbidden as error:
        context.abort(grpc.StatusCode.PERMISSION_DENIED, error.what)


class PartnerServer:
    """Listens for partners until `close`."""

    def __init__(
        self,
        address: str,
        service: PartnerService,
        credentials: grpc.ServerCredentials | None = None,
    ) -> None:
        """Listen at host:port (port 0: a free one); without credentials connections are plain.

        Raises SetupError where that address cannot be had.
        """
        pool = ThreadPoolExecutor(THREADS, thread_name_prefix="partner")
        self._server = grpc.server(pool, options=OPTIONS)
        partner_pb2_grpc.add_PartnerServicer_to_server(  # type: ignore[no-untyped-call]
            service, self._server
        )
        try:
            if credentials is None:
                self.port = self._server.add_insecure_port(address)
            else:
                self.port = self._server.add_secure_port(address, credentials)
        except RuntimeError:
            self.port = 0
        if not self.port:
            raise SetupError(
                f"cannot listen for partners on {address}",
                advice="is another shim there? --partner-listen names another address",
            )
        self._server.start()

    def close(self, grace_s: float = 1.0) -> None:
        """Take no more calls; those under way have the grace."""
        self._server.stop(grace_s).wait(grace_s + 1)
