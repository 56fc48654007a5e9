"""Carriers, leaders and shims in any order of events: what holds whatever happens.

Real Carrier and Hub, links and shims that a test steps by hand: nothing here waits, no timer runs.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from allstop.v1 import carrier_pb2, shim_pb2
from hypothesis import example, given, settings
from hypothesis import strategies as st

from coordinator.codec import to_proto
from coordinator.core import commands, events
from coordinator.core.errors import AllstopError, LinkError
from coordinator.core.model import Phase
from coordinator.link.carrier import Carrier
from coordinator.link.hub import Branch, Hub
from coordinator.link.stream import ShimStream
from tests.support.fake_node import facts_of

NODES = 3
CARRIERS = 2


@dataclass(eq=False)
class Shim:
    """Counts all that it says and does; the fence is a real shim's."""

    node: str
    said: int = 0  # a number for each thing said, reports and Hellos too
    highest: int = 0
    stream: ShimStream | None = None
    carrier: Carrier | None = None
    coming: Any = None
    welcomed: bool = False
    outgoing: deque[shim_pb2.ShimMessage] = field(default_factory=deque)
    done: list[tuple[int, int, int]] = field(default_factory=list)  # epoch, number, words before

    def hello(self) -> shim_pb2.Hello:
        self.said += 1
        made = shim_pb2.Hello(
            facts=to_proto(facts_of(self.node)),
            session="s",
            highest_epoch=self.highest,
            number=self.said,
        )
        made.workers.add(job="llm", root_pid=self.said, state="running")
        return made

    def say(self, kind: str) -> None:
        """Put something numbered on the wire."""
        self.said += 1
        message = shim_pb2.ShimMessage()
        if kind == "report":
            message.report.workers.add(job="llm", root_pid=self.said, state="running")
        else:
            message.exited.job = "llm"
            message.exited.exit_code = self.said
        self.outgoing.append(message)

    async def read(self) -> bool:
        """Take in one message of the stream; whether there was one."""
        if self.stream is None or not self.stream.waiting:
            return False
        going = asyncio.ensure_future(anext(self.coming, None))
        await asyncio.sleep(0)
        if not going.done():
            going.cancel()
            await asyncio.gather(going, return_exceptions=True)
            self.coming = self.stream.messages()
            return False
        message = going.result()
        if message is None:
            return False
        kind = message.WhichOneof("body")
        if kind == "welcome":
            if message.welcome.epoch < self.highest:
                self.hang_up()
                return True
            self.highest = message.welcome.epoch
            if self.welcomed:
                self.outgoing.append(shim_pb2.ShimMessage(hello=self.hello()))
            self.welcomed = True
        elif kind == "order":
            order = message.order
            if order.epoch < self.highest:
                return True
            self.highest = order.epoch
            self.done.append((order.epoch, order.worker, self.said))
            answer = shim_pb2.OrderResult(
                epoch=order.epoch, job="llm", worker=order.worker, action="a", phase=order.phase
            )
            self.outgoing.append(shim_pb2.ShimMessage(result=answer))
        return True

    def hang_up(self) -> None:
        """Break the stream; the carrier need not have noticed yet."""
        self.stream, self.outgoing = None, deque()

    def deliver(self) -> bool:
        """Let the carrier take in one message; whether there was one."""
        if self.stream is None or self.carrier is None or not self.outgoing:
            return False
        if self.stream.ending is not None:
            self.hang_up()
            return True
        self.carrier.say(self.stream, self.outgoing.popleft())
        return True


class Link:
    """A way between a carrier and a leader on which messages take their time."""

    def __init__(self, carrier: Carrier, hub: Hub) -> None:
        self.epoch, self.coordinator = hub.epoch, hub.coordinator
        self.report_interval_ms, self.behind = 1_000, False
        self.carrier, self.hub = carrier, hub
        self.up: deque[carrier_pb2.CarrierMessage] = deque()
        self.down: deque[carrier_pb2.LeaderMessage] = deque()
        self.branch: Branch = hub.join(carrier.name, carrier.session, _Down(self))
        self.cut = False

    def check(self) -> None:
        """Nothing is known of the leader's right."""

    def send(self, message: carrier_pb2.CarrierMessage) -> None:
        self.up.append(carrier_pb2.CarrierMessage.FromString(message.SerializeToString()))

    def close(self, why: AllstopError) -> None:
        """What is on its way may arrive all the same."""
        self.cut = True

    def step(self, upward: bool) -> bool:
        """One message arrives."""
        if upward and self.up:
            self.hub.take(self.branch, self.up.popleft())
            return True
        if not upward and self.down:
            self.carrier.take(self, self.down.popleft())
            return True
        return False


class _Down:
    def __init__(self, link: Link) -> None:
        self.link = link

    def send(self, message: carrier_pb2.LeaderMessage) -> None:
        self.link.down.append(carrier_pb2.LeaderMessage.FromString(message.SerializeToString()))

    def end(self, why: AllstopError) -> None:
        self.link.cut = True


class World:
    """All of it, and what every leader was told."""

    def __init__(self) -> None:
        self.carriers = [Carrier(f"c{index}", session=f"s{index}") for index in range(CARRIERS)]
        self.shims = [Shim(f"node-{index}") for index in range(NODES)]
        self.links: list[Link | None] = [None] * CARRIERS
        self.past: list[Link] = []
        self.told: dict[int, list[events.Event]] = {}
        self.sent: dict[str, list[tuple[int, int, int]]] = {}  # node -> epoch, number, heard before
        self.heard: dict[str, int] = {}
        self.epoch = 0
        self.orders = 0
        self.hub: Hub
        self.lead()

    def lead(self) -> None:
        """A new leader; carriers hear of it later, one by one."""
        self.epoch += 1
        told = self.told[self.epoch] = []
        self.hub = Hub(self.epoch, f"leader {self.epoch}", told.append)

    def follow(self, index: int) -> None:
        carrier = self.carriers[index]
        past = self.links[index]
        if past is not None:
            self.past.append(past)
        self.links[index] = link = Link(carrier, self.hub)
        carrier.follow(link)

    def cut(self, index: int) -> None:
        """The way breaks; both ends notice."""
        link = self.links[index]
        if link is not None:
            link.hub.part(link.branch, LinkError("cut"))
            self.carriers[index].unfollow(LinkError("cut"), link)

    def attach(self, number: int, index: int) -> None:
        shim, carrier = self.shims[number], self.carriers[index]
        shim.hang_up()
        try:
            stream = carrier.attach(shim.hello())
        except AllstopError:
            return
        shim.stream, shim.carrier, shim.welcomed = stream, carrier, False
        shim.coming = stream.messages()

    def order(self, number: int) -> None:
        node = self.shims[number].node
        self.orders += 1
        order = commands.SendOrder(
            node, self.epoch, "llm", self.orders, "a", Phase.PARK, 1.0, target=1
        )
        if self.hub.order(order):
            self.sent.setdefault(node, []).append((self.epoch, self.orders, self.hears(node)))

    def hears(self, node: str) -> int:
        """The number of the newest Hello of this node that the present leader knows of."""
        told = self.told[self.epoch]
        attached = [e for e in told if isinstance(e, events.NodeAttached) and e.facts.node == node]
        return attached[-1].workers[0].root_pid if attached else 0

    def hang_up(self, number: int) -> None:
        """A shim's stream breaks, and its carrier notices."""
        shim = self.shims[number]
        if shim.stream is not None and shim.carrier is not None:
            shim.carrier.lose(shim.stream, LinkError("broken"))
            shim.hang_up()

    def say(self, number: int, kind: str) -> None:
        shim = self.shims[number]
        if shim.welcomed and shim.stream is not None:
            shim.say(kind)

    def step(self, index: int, *, upward: bool) -> None:
        link = self.links[index]
        if link is not None and not link.cut:
            link.step(upward)

    def late(self, *, upward: bool) -> None:
        """What was on links that are cut arrives now."""
        for link in self.past:
            link.step(upward)

    async def act(self, kind: str, number: int, index: int) -> None:
        """Let one thing happen."""
        if kind == "read":
            await self.shims[number].read()
            return
        acts: dict[str, Callable[[], object]] = {
            "lead": self.lead,
            "follow": lambda: self.follow(index),
            "cut": lambda: self.cut(index),
            "attach": lambda: self.attach(number, index),
            "break": lambda: self.hang_up(number),
            "report": lambda: self.say(number, "report"),
            "exited": lambda: self.say(number, "exited"),
            "order": lambda: self.order(number),
            "deliver": self.shims[number].deliver,
            "gathered": self.carriers[index]._gathering.flush,
            "decided": self.hub.flush,
            "late up": lambda: self.late(upward=True),
            "late down": lambda: self.late(upward=False),
            "up": lambda: self.step(index, upward=True),
            "down": lambda: self.step(index, upward=False),
        }
        acts[kind]()

    async def settle(self) -> None:
        """Every carrier follows the last leader, and all that is on its way arrives."""
        for index in range(CARRIERS):
            link = self.links[index]
            if link is None or link.cut or link.hub is not self.hub:
                self.follow(index)
        for number, shim in enumerate(self.shims):
            if shim.stream is None or shim.stream.ending is not None:
                self.attach(number, number % CARRIERS)
        moved = True
        while moved:
            moved = False
            for shim in self.shims:
                moved |= await shim.read() or shim.deliver()
            for carrier in self.carriers:
                carrier._gathering.flush()
            self.hub.flush()
            for link in self.links:
                assert link is not None
                moved |= link.step(True) or link.step(False)

    def verify(self) -> None:
        for told in self.told.values():
            for shim in self.shims:
                self.verify_words(shim.node, told)
        for shim in self.shims:
            self.verify_orders(shim)

    def verify_words(self, node: str, told: list[events.Event]) -> None:
        """Attached and lost in turn; numbers rise; nothing from before the Hello comes after it."""
        attached, last = False, 0
        for event in told:
            if isinstance(event, events.NodeAttached):
                if event.facts.node != node:
                    continue
                assert not attached
                attached, number = True, event.workers[0].root_pid
            elif getattr(event, "node", "") != node:
                continue
            else:
                assert attached, event
                if isinstance(event, events.NodeLost):
                    attached = False
                    continue
                if isinstance(event, events.NodeReported):
                    number = event.workers[0].root_pid
                elif isinstance(event, events.WorkerExited):
                    number = event.exit_code
                else:
                    continue
            assert number > last, (node, event)
            last = number

    def verify_orders(self, shim: Shim) -> None:
        """What was done was sent, once, in the order of sending, and not behind a newer Hello."""
        sent = self.sent.get(shim.node, [])
        done = [(epoch, number) for epoch, number, _ in shim.done]
        assert done == sorted(set(done))
        for epoch, number, words in shim.done:
            (known,) = [heard for e, n, heard in sent if (e, n) == (epoch, number)]
            newer = [hello for hello in self.hellos(shim) if known < hello <= words]
            assert not newer, "an order from before a Hello was carried out behind it"

    def hellos(self, shim: Shim) -> list[int]:
        """Numbers of the Hellos of a shim that some leader has heard."""
        return [
            event.workers[0].root_pid
            for told in self.told.values()
            for event in told
            if isinstance(event, events.NodeAttached) and event.facts.node == shim.node
        ]


KINDS = ["lead", "follow", "follow", "cut", "attach", "attach", "attach", "break"]
KINDS += ["late up", "late down"] + 3 * [
    *("report", "exited", "order", "order", "read", "read", "read", "deliver", "deliver"),
    *("gathered", "decided", "decided", "up", "up", "down", "down"),
]
STEPS = st.lists(
    st.tuples(st.sampled_from(KINDS), st.integers(0, NODES - 1), st.integers(0, CARRIERS - 1)),
    max_size=120,
)


@example([("attach", 0, 1), ("attach", 0, 0)])  # the later Hello arrives first
@settings(max_examples=100, deadline=None)
@given(STEPS)
def test_words_and_orders_keep_their_order_whoever_leads(steps: list[tuple[str, int, int]]) -> None:
    async def run() -> None:
        world = World()
        for step in [("follow", 0, 0), ("follow", 0, 1), *steps]:
            await world.act(*step)
        await world.settle()
        world.verify()
        assert sorted(world.hub.nodes) == [shim.node for shim in world.shims]
        for shim in world.shims:
            assert shim.highest == world.epoch

    asyncio.run(run())


@settings(max_examples=30, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 2), st.booleans()), min_size=1, max_size=30))
def test_what_goes_out_in_one_turn_is_what_was_decided(sends: list[tuple[int, bool]]) -> None:
    """Joined or not: each shim gets its orders in order, and few messages carry them."""

    async def run() -> None:
        world = World()
        for index in range(CARRIERS):
            world.follow(index)
        for number in range(NODES):
            world.attach(number, 0)
        await world.settle()
        expected: dict[str, list[tuple[str, int]]] = {shim.node: [] for shim in world.shims}
        for worker, (number, admission) in enumerate(sends):
            node = world.shims[number].node
            if admission:
                world.hub.admit(commands.AdmitWorker(node, "llm", worker, 1))
            else:
                world.hub.order(
                    commands.SendOrder(node, 1, "llm", worker, "a", Phase.PARK, 1.0, target=1)
                )
            expected[node].append(("admitted" if admission else "order", worker))
        world.hub.flush()
        link = world.links[0]
        assert link is not None
        assert len(link.down) == 1
        got: dict[str, list[tuple[str, int]]] = {shim.node: [] for shim in world.shims}
        link.step(False)
        for shim in world.shims:
            assert shim.stream is not None
            while shim.stream.waiting:
                message = await anext(shim.coming)
                kind = message.WhichOneof("body")
                got[shim.node].append((kind, getattr(message, kind).worker))
        assert got == expected

    asyncio.run(run())
