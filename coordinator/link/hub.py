"""All attached shims: node to stream, and the questions that are out."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import replace

import structlog
from allstop.v1 import shim_pb2

from coordinator.core import commands, events
from coordinator.core.errors import AllstopError, Fenced, LinkError, Where
from coordinator.core.model import NodeFacts, ProgramFile
from coordinator.link import wire
from coordinator.link.stream import OUTGOING_MAX, ShimStream

log = structlog.get_logger(__name__)

REPORT_INTERVAL_MS = 1_000
QUESTION_DEADLINE_S = 1.0


class Hub:
    """The streams of one leadership. What happens on them is given to `tell`, in order.

    A node is lost the moment its stream ends without Goodbye: an order may have been on the wire,
    and only the core may decide what that means. There is no grace time.
    """

    def __init__(
        self,
        epoch: int,
        coordinator: str,
        tell: Callable[[events.Event], None],
        *,
        report_interval_ms: int = REPORT_INTERVAL_MS,
        outgoing_max: int = OUTGOING_MAX,
    ) -> None:
        """`tell` must not block: attach, loss and leave may not wait behind a full queue."""
        self.epoch = epoch
        self.coordinator = coordinator
        self._tell = tell
        self._report_interval_ms = report_interval_ms
        self._outgoing_max = outgoing_max
        self._streams: dict[str, ShimStream] = {}
        self._questions: dict[tuple[int, str], asyncio.Future[NodeFacts]] = {}
        self._question = 0
        self._closed: AllstopError | None = None

    @property
    def nodes(self) -> tuple[str, ...]:
        """Nodes that have a stream now."""
        return tuple(self._streams)

    # -- streams -----------------------------------------------------------------------------

    def attach(self, hello: shim_pb2.Hello) -> ShimStream:
        """Take a shim in: Welcome is queued, the core is told.

        An older stream of the node is lost first, even when the shim has just dialled again and
        the old connection is not known to be dead: what was on its wire may be lost.
        Raises Fenced when a newer coordinator has already spoken to this shim.
        """
        facts = wire.facts_of(hello.facts)
        if self._closed is not None:
            raise self._closed
        if hello.highest_epoch > self.epoch:
            raise Fenced(
                f"this coordinator leads in epoch {self.epoch}, but the shim has already obeyed"
                f" epoch {hello.highest_epoch}",
                where=Where(node=facts.node),
                advice="dial the newer coordinator",
            )
        older = self._streams.get(facts.node)
        if older is not None:
            self.lose(
                older,
                Fenced("another stream of this node was opened", where=Where(node=facts.node)),
            )
        stream = ShimStream(facts.node, hello.session, outgoing_max=self._outgoing_max)
        stream.send(wire.welcome_message(self.epoch, self.coordinator, self._report_interval_ms))
        self._streams[facts.node] = stream
        self._tell(events.NodeAttached(facts, hello.session, wire.workers_of(hello.workers)))
        log.info("node attached", node=facts.node, session=hello.session, address=facts.address)
        return stream

    def lose(self, stream: ShimStream, why: AllstopError) -> None:
        """The stream is gone without Goodbye; only the first call for a stream does anything."""
        if self._detach(stream, why):
            reason = (stream.ending or why).what
            self._tell(events.NodeLost(stream.node, stream.session, reason))
            log.warning("node lost", node=stream.node, session=stream.session, reason=reason)

    def leave(self, stream: ShimStream, reason: str) -> None:
        """The shim said Goodbye."""
        if self._detach(
            stream, LinkError(f"the shim left: {reason}", where=Where(node=stream.node))
        ):
            self._tell(events.NodeLeft(stream.node, stream.session, reason))
            log.info("node left", node=stream.node, session=stream.session, reason=reason)

    def _detach(self, stream: ShimStream, why: AllstopError) -> bool:
        if self._streams.get(stream.node) is not stream:
            return False
        del self._streams[stream.node]
        stream.end(why)
        for (number, node), answer in list(self._questions.items()):
            if node == stream.node and not answer.done():
                self._questions.pop((number, node))
                answer.cancel()
        return True

    def close(self, why: AllstopError) -> None:
        """End every stream; nothing is told any more: the leadership is over."""
        self._closed = why
        self._tell = lambda event: None
        for stream in list(self._streams.values()):
            self._detach(stream, why)

    # -- what goes out -----------------------------------------------------------------------

    def _send(self, node: str, message: shim_pb2.CoordinatorMessage) -> bool:
        stream = self._streams.get(node)
        if stream is None:
            return False  # the core has been told, or is about to be: NodeLost is in its queue
        if stream.send(message):
            return True
        assert stream.ending is not None
        self.lose(stream, stream.ending)
        return False

    def order(self, order: commands.SendOrder) -> bool:
        """Send an order; False when the node has no stream (its loss has been told)."""
        return self._send(order.node, wire.order_message(order))

    def fence(self, fence: commands.FenceWorkers) -> bool:
        """Tell a shim which of its workers may not go on."""
        return self._send(fence.node, wire.fence_message(self.epoch, fence.reason, fence.workers))

    def admit(self, admission: commands.AdmitWorker) -> bool:
        """Tell a shim that its worker is the job's, and in which incarnation."""
        return self._send(admission.node, wire.admitted_message(self.epoch, admission))

    async def ask(
        self, files: Sequence[ProgramFile], *, deadline_s: float = QUESTION_DEADLINE_S
    ) -> tuple[NodeFacts, ...]:
        """Ask every attached node for these program files.

        Nodes that do not answer in time are left out: nothing is known of their files then.
        """
        self._question += 1
        number, loop = self._question, asyncio.get_running_loop()
        waiting: dict[str, asyncio.Future[NodeFacts]] = {}
        message = wire.question_message(number, tuple(files))
        for node in self.nodes:
            answer = loop.create_future()
            self._questions[number, node] = answer
            if self._send(node, message):
                waiting[node] = answer
        try:
            if waiting:
                await asyncio.wait(waiting.values(), timeout=deadline_s)
        finally:
            for node in waiting:
                self._questions.pop((number, node), None)
        return tuple(
            answer.result()
            for answer in waiting.values()
            if answer.done() and not answer.cancelled()
        )

    def answered(self, stream: ShimStream, answer: shim_pb2.Answer) -> None:
        """A shim's answer to a question; late ones are dropped."""
        waiting = self._questions.pop((answer.question, stream.node), None)
        if waiting is not None and not waiting.done():
            waiting.set_result(replace(wire.facts_of(answer.facts), node=stream.node))
