"""A coordinator that decides nothing: it speaks ShimLink and sends what a test tells it to."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Self

import grpc
import grpc.aio
from allstop.v1 import shim_pb2, shim_pb2_grpc

from coordinator.codec import to_proto
from coordinator.core.model import AddressMove, Endpoint, GpuMove, WorkerRecord

SERVER_OPTIONS = (
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.min_recv_ping_interval_without_data_ms", 500),
    ("grpc.http2.max_ping_strikes", 0),
    ("grpc.so_reuseport", 0),
)


@dataclass
class Peer:
    """One attached shim."""

    hello: shim_pb2.Hello
    outgoing: asyncio.Queue[shim_pb2.CoordinatorMessage | None] = field(
        default_factory=asyncio.Queue
    )
    seen: list[shim_pb2.ShimMessage] = field(default_factory=list)
    ended: bool = False
    news: asyncio.Condition = field(default_factory=asyncio.Condition)

    @property
    def node(self) -> str:
        return self.hello.facts.node

    def send(self, message: shim_pb2.CoordinatorMessage) -> None:
        self.outgoing.put_nowait(message)

    def hang_up(self) -> None:
        """End the stream without a word."""
        self.ended = True
        self.outgoing.put_nowait(None)

    async def until(self, wanted: Callable[[shim_pb2.ShimMessage], Any], deadline_s: float) -> Any:
        """The first message (also an earlier one) for which `wanted` gives something true."""
        async with asyncio.timeout(deadline_s), self.news:
            at = 0
            while True:
                for message in self.seen[at:]:
                    if found := wanted(message):
                        return found
                at = len(self.seen)
                await self.news.wait()

    async def order(
        self,
        phase: str,
        action: str,
        *,
        job: str = "llm",
        worker: int = 0,
        epoch: int = 1,
        deadline_s: float = 100.0,
        hold_s: float = 120.0,
        **detail: Any,
    ) -> shim_pb2.OrderResult:
        """Send one order and wait for an answer to it that was not there before."""
        before = len(self.seen)
        self.send(order_message(phase, action, job, worker, epoch, deadline_s, hold_s, detail))

        def answer(message: shim_pb2.ShimMessage) -> shim_pb2.OrderResult | None:
            result = message.result
            fits = (result.action, result.worker, result.phase) == (
                action,
                worker,
                shim_pb2.Order(phase=f"PHASE_{phase}").phase,  # type: ignore[arg-type]
            )
            late = any(message is each for each in self.seen[before:])
            return result if message.HasField("result") and fits and late else None

        found: shim_pb2.OrderResult = await self.until(answer, deadline_s + 20.0)
        return found

    async def state(self, wanted: str, *, deadline_s: float = 10.0) -> Any:
        """Wait until the newest report has a worker in this state."""

        def fits(message: shim_pb2.ShimMessage) -> Any:
            reports = [each for each in self.seen if each.HasField("report")]
            if not reports or message is not reports[-1]:
                return None
            return next((w for w in message.report.workers if w.state == wanted), None)

        return await self.until(fits, deadline_s)


def order_message(
    phase: str,
    action: str,
    job: str,
    worker: int,
    epoch: int,
    deadline_s: float,
    hold_s: float,
    detail: dict[str, Any],
) -> shim_pb2.CoordinatorMessage:
    message = shim_pb2.CoordinatorMessage()
    order = message.order
    order.epoch, order.job, order.worker, order.action = epoch, job, worker, action
    order.phase = f"PHASE_{phase}"  # type: ignore[assignment]
    order.deadline_ms, order.hold_ms = round(deadline_s * 1000), round(hold_s * 1000)
    kind = phase.lower()
    if kind not in shim_pb2.Order.DESCRIPTOR.fields_by_name:
        return message
    body = getattr(order, kind)
    body.SetInParent()
    for name, value in detail.items():
        if isinstance(value, WorkerRecord):
            body.record.CopyFrom(to_proto(value))
        elif isinstance(value, shim_pb2.OrderResult):
            body.record.CopyFrom(value.record)
        elif isinstance(value, tuple):
            getattr(body, name).extend(
                to_proto(each) if isinstance(each, Endpoint | AddressMove | GpuMove) else each
                for each in value
            )
        else:
            setattr(body, name, value)
    return message


class FakeCoordinator(shim_pb2_grpc.ShimLinkServicer):
    """A server on `address` for as long as its context lasts; shims arrive as peers by node."""

    def __init__(self, address: str, *, epoch: int = 1, report_interval_ms: int = 50) -> None:
        self.address = address
        self.epoch = epoch
        self.silent = False  # takes streams and says nothing
        self.report_interval_ms = report_interval_ms
        self.peers: dict[str, Peer] = {}
        self.streams = 0
        self._arrived = asyncio.Condition()

    async def __aenter__(self) -> Self:
        self._server = grpc.aio.server(options=SERVER_OPTIONS)
        shim_pb2_grpc.add_ShimLinkServicer_to_server(self, self._server)  # type: ignore[no-untyped-call]
        port = self._server.add_insecure_port(self.address)
        if not self.address.startswith("unix:"):
            self.address = f"{self.address.rsplit(':', 1)[0]}:{port}"
        await self._server.start()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for peer in self.peers.values():
            peer.hang_up()
        await self._server.stop(0.2)

    async def peer(self, node: str, *, after: Peer | None = None, deadline_s: float = 20.0) -> Peer:
        """The shim of that node, once it is attached (again, where an older stream is given)."""

        def there() -> bool:
            peer = self.peers.get(node)
            return peer is not None and not peer.ended and peer is not after

        async with asyncio.timeout(deadline_s), self._arrived:
            await self._arrived.wait_for(there)
        return self.peers[node]

    async def Attach(  # noqa: N802 - the name is the proto's
        self, request_iterator: AsyncIterator[shim_pb2.ShimMessage], context: Any
    ) -> AsyncIterator[shim_pb2.CoordinatorMessage]:
        self.streams += 1
        first = await anext(request_iterator)
        peer = Peer(first.hello)
        if not self.silent:
            yield shim_pb2.CoordinatorMessage(
                welcome=shim_pb2.Welcome(
                    epoch=self.epoch,
                    coordinator="fake",
                    report_interval_ms=self.report_interval_ms,
                )
            )
        async with self._arrived:
            self.peers[peer.node] = peer
            self._arrived.notify_all()
        reading = asyncio.create_task(self._read(peer, request_iterator))
        try:
            while (message := await peer.outgoing.get()) is not None:
                yield message
        finally:
            peer.ended = True
            reading.cancel()

    async def _read(self, peer: Peer, requests: AsyncIterator[shim_pb2.ShimMessage]) -> None:
        async for message in requests:
            async with peer.news:
                results = [shim_pb2.ShimMessage(result=r) for r in message.results.results]
                peer.seen.extend(results or [message])
                peer.news.notify_all()
        async with peer.news:
            peer.ended = True
            peer.news.notify_all()
        peer.hang_up()
