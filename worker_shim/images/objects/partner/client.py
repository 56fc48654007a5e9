"""The side that asks: one partner, as far as it can be reached; every call has a deadline."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from threading import Lock
from typing import TypeVar

import grpc
from allstop.v1 import partner_pb2, partner_pb2_grpc

from coordinator.core.errors import DriverError
from worker_shim.images.objects.partner.belonging import Belonging
from worker_shim.images.objects.partner.ring import Member
from worker_shim.images.objects.partner.service import OPTIONS, PIECE_BYTES
from worker_shim.images.objects.port import Listed, ObjectMissing, Part

T = TypeVar("T")


class PartnerAway(DriverError):
    """A partner does not answer; others may have what it has."""


@dataclass(frozen=True)
class Limits:
    """How long a call may take: `call_s`, and a second for each `bytes_per_s` that it moves."""

    call_s: float = 10.0
    bytes_per_s: int = 4 << 20
    away_s: float = 10.0  # one that did not answer is left out for so long where others do


class Partner:
    """A shim that keeps objects; may be used from several threads at once."""

    def __init__(
        self,
        member: Member,
        belonging: Belonging,
        credentials: grpc.ChannelCredentials | None,
        limits: Limits,
    ) -> None:
        """`belonging` is of the node that asks. Nothing is dialled before the first call.

        Its certificate must be of the node's name, whatever the address.
        """
        self.member, self._belonging, self._limits = member, belonging, limits
        self._credentials, self._lock = credentials, Lock()
        self._made: grpc.Channel | None = None
        self._away_until = 0.0
        self.free_bytes = 1 << 62  # as it told last

    @property
    def away(self) -> bool:
        """Whether it has just failed to answer."""
        return time.monotonic() < self._away_until

    def keep(self, name: str, parts: Sequence[Part]) -> bool:
        """Have it keep an object; False: it has another one of that name.

        May be called again with the same bytes: what is there is compared.
        """
        views = [memoryview(part).cast("B") for part in parts]
        size = sum(view.nbytes for view in views)

        def pieces() -> Iterator[partner_pb2.KeepPiece]:
            yield partner_pb2.KeepPiece(ring=self._belonging.shown(), name=name, size_bytes=size)
            for view in views:
                for at in range(0, view.nbytes, PIECE_BYTES):
                    yield partner_pb2.KeepPiece(data=bytes(view[at : at + PIECE_BYTES]))

        seconds = self._limits.call_s + size / self._limits.bytes_per_s
        kept = self._asked(name, lambda stub: stub.Keep(pieces(), timeout=seconds), writing=True)
        self.free_bytes = kept.free_bytes
        return bool(kept.made or kept.same)

    def get(self, name: str, start: int, length: int | None) -> bytes:
        """An object or a part of it; raises ObjectMissing."""
        request = partner_pb2.ReadPart(
            ring=self._belonging.shown(),
            name=name,
            start=start,
            to_end=length is None,
            length=length or 0,
        )
        size = length if length is not None else self.size(name)
        seconds = self._limits.call_s + size / self._limits.bytes_per_s

        def read(stub: partner_pb2_grpc.PartnerStub) -> bytes:
            return b"".join(piece.data for piece in stub.Read(request, timeout=seconds))

        return self._asked(name, read)

    def size(self, name: str) -> int:
        """In bytes; raises ObjectMissing."""
        request = partner_pb2.ObjectName(ring=self._belonging.shown(), name=name)
        timeout = self._limits.call_s
        return self._asked(name, lambda stub: int(stub.Size(request, timeout=timeout).size_bytes))

    def list(self, prefix: str) -> list[Listed]:
        """Everything that it has of its own and keeps for others."""
        request = partner_pb2.ObjectPrefix(ring=self._belonging.shown(), prefix=prefix)

        def read(stub: partner_pb2_grpc.PartnerStub) -> list[Listed]:
            return [
                Listed(each.name, each.size_bytes, each.modified_unix_s)
                for page in stub.ListObjects(request, timeout=self._limits.call_s)
                for each in page.objects
            ]

        return self._asked(prefix, read)

    def delete(self, name: str) -> None:
        """Remove an object there; no error when it is gone."""
        request = partner_pb2.ObjectName(ring=self._belonging.shown(), name=name)
        timeout = self._limits.call_s
        removed = self._asked(
            name, lambda stub: stub.Remove(request, timeout=timeout), writing=True
        )
        self.free_bytes = removed.free_bytes

    def close(self) -> None:
        """Let go of the connection."""
        with self._lock:
            if self._made is not None:
                self._made.close()

    def _asked(
        self,
        name: str,
        ask: Callable[[partner_pb2_grpc.PartnerStub], T],
        *,
        writing: bool = False,
    ) -> T:
        try:
            stub = partner_pb2_grpc.PartnerStub(self._channel())  # type: ignore[no-untyped-call]
            answer = ask(stub)
        except grpc.RpcError as error:
            raise self._mapped(error, name, writing) from error
        self._away_until = 0.0
        return answer

    def _channel(self) -> grpc.Channel:
        with self._lock:
            if self._made is None:
                address, node = self.member.address, self.member.node
                options: list[tuple[str, str | int]] = [
                    *OPTIONS,
                    ("grpc.enable_http_proxy", 0),
                    ("grpc.use_local_subchannel_pool", 1),
                    ("grpc.initial_reconnect_backoff_ms", 100),
                    ("grpc.max_reconnect_backoff_ms", 2_000),
                ]
                if self._credentials is None:
                    self._made = grpc.insecure_channel(address, options)
                else:
                    options.append(("grpc.ssl_target_name_override", node))
                    self._made = grpc.secure_channel(address, self._credentials, options)
            return self._made

    def _mapped(self, error: grpc.RpcError, name: str, writing: bool) -> DriverError:
        """The one place where what gRPC says of a partner becomes ours."""
        code, said = error.code(), str(error.details() or "")
        node = self.member.node
        details = (f"{code.name}: {said[:400]}",)
        if code is grpc.StatusCode.NOT_FOUND:
            return ObjectMissing(f"partner {node} has no {name}", details=details)
        if code is grpc.StatusCode.RESOURCE_EXHAUSTED:
            advice = "a higher --partner-limit there, more disk, or fewer snapshots"
            return DriverError(f"no room left at partner {node}", advice=advice, details=details)
        if code in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED):
            self._away_until = time.monotonic() + self._limits.away_s
            advice = f"is its shim up, at {self.member.address}, with a certificate of {node}?"
            what = f"partner {node} does not answer"
            return PartnerAway(what, advice=advice, definite=not writing, details=details)
        if code is grpc.StatusCode.PERMISSION_DENIED:
            return DriverError(f"partner {node} refuses us: {said}", details=details)
        what = f"partner {node} cannot do it: {said or code.name}"
        definite = not writing or code is grpc.StatusCode.FAILED_PRECONDITION
        return DriverError(what, definite=definite, details=details)
