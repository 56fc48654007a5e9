"""A carrier with a leader that keeps what it hears, and the words shims and leaders say."""

import asyncio
from typing import Any

from allstop.v1 import carrier_pb2, shim_pb2

from coordinator.codec import number_of, to_proto
from coordinator.core.errors import (
    AllstopError,
    Fenced,
)
from coordinator.core.model import Phase
from coordinator.link.carrier import Carrier
from coordinator.link.stream import ShimStream
from tests.support.fake_node import facts_of


class FakeUplink:
    """A leader that keeps what it hears."""

    def __init__(self, epoch: int, coordinator: str = "leader") -> None:
        self.epoch = epoch
        self.coordinator = coordinator
        self.report_interval_ms = 1_000
        self.behind = False
        self.heard: list[carrier_pb2.CarrierMessage] = []
        self.closed: AllstopError | None = None
        self.over = False
        self.news = asyncio.Event()

    def check(self) -> None:
        if self.over:
            raise Fenced("its lease is over")

    def send(self, message: carrier_pb2.CarrierMessage) -> None:
        self.heard.append(message)
        self.news.set()

    def close(self, why: AllstopError) -> None:
        self.closed = why

    def said(self) -> list[tuple[int, str]]:
        return [
            (each.attachment, each.message.WhichOneof("body") or "lost")
            for message in self.heard
            for each in message.said
        ]


def hello(node: str, session: str = "s1", highest_epoch: int = 0) -> shim_pb2.Hello:
    return shim_pb2.Hello(
        facts=to_proto(facts_of(node)), session=session, highest_epoch=highest_epoch
    )


def report(boundary: int = 0, incarnation: int = 1, **body: Any) -> shim_pb2.ShimMessage:
    made = shim_pb2.ShimMessage(report=shim_pb2.Report(**body))
    made.report.workers.add(job="llm", incarnation=incarnation, root_pid=boundary)
    return made


def result(worker: int, phase: Phase = Phase.PARK, **body: Any) -> shim_pb2.ShimMessage:
    return shim_pb2.ShimMessage(
        result=shim_pb2.OrderResult(
            job="llm", worker=worker, action="a", phase=number_of(phase), **body
        )
    )


def orders(
    epoch: int, attachments: list[int], workers: list[int], phase: Phase = Phase.PARK
) -> carrier_pb2.LeaderMessage:
    order = shim_pb2.Order(epoch=epoch, job="llm", action="a", phase=number_of(phase))
    delivery = carrier_pb2.Delivery(
        message=shim_pb2.CoordinatorMessage(order=order),
        attachments=attachments,
        workers=workers,
    )
    return carrier_pb2.LeaderMessage(epoch=epoch, deliveries=[delivery])


async def sent(stream: ShimStream) -> list[str]:
    """What goes to the shim now, in words."""
    words: list[str] = []
    stepping = stream.messages()
    while stream.waiting:
        going = asyncio.ensure_future(anext(stepping))
        await asyncio.sleep(0)
        if not going.done():  # all that was left was refused
            going.cancel()
            break
        message = going.result()
        kind = message.WhichOneof("body")
        if kind == "welcome":
            words.append(f"welcome {message.welcome.epoch}")
        elif kind == "order":
            words.append(f"order {message.order.epoch} {message.order.worker}")
        else:
            words.append(str(kind))
    return words


async def turn() -> None:
    """Let what is due at once happen."""
    for _ in range(3):
        await asyncio.sleep(0)


async def attached(*nodes: str, epoch: int = 5) -> tuple[Carrier, FakeUplink, list[ShimStream]]:
    """A carrier that follows, and shims that have been welcomed."""
    carrier, uplink = Carrier("c"), FakeUplink(epoch)
    carrier.follow(uplink)
    streams = [carrier.attach(hello(node)) for node in nodes]
    for stream in streams:
        assert await sent(stream) == [f"welcome {epoch}"]
    await turn()
    del uplink.heard[:]
    return carrier, uplink, streams
