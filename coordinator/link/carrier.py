"""The shims' streams of this process, whoever leads: any replica carries shims."""

from __future__ import annotations

import asyncio
import secrets

import structlog
from allstop.v1 import carrier_pb2, shim_pb2

from coordinator.core.errors import (
    AllstopError,
    BadRequest,
    DeadlinePassed,
    Fenced,
    LinkError,
    NoLeader,
    Where,
)
from coordinator.link import wire
from coordinator.link.gathering import Gathering
from coordinator.link.mapping import unpacked
from coordinator.link.stream import OUTGOING_MAX, ShimStream
from coordinator.link.uplink import Uplink

log = structlog.get_logger(__name__)

HELLO_DEADLINE_S = 10.0
LEADERLESS_S = 30.0


class Carrier:
    """Owns the streams; passes the one leader's orders on to the shims, and what they say up.

    A change of leader ends no stream: each shim gets the new leader's Welcome on the stream it has
    and answers with a new Hello. What it said before that Hello is not for the new leader: the
    state in the Hello is the truth. Without a leader streams are kept for LEADERLESS_S, then the
    shims are sent away to look for another coordinator. Nothing here waits or knows of gRPC.
    """

    def __init__(
        self,
        name: str,
        *,
        session: str = "",
        outgoing_max: int = OUTGOING_MAX,
        hello_deadline_s: float = HELLO_DEADLINE_S,
        leaderless_s: float = LEADERLESS_S,
    ) -> None:
        """`name` is for people; `session` tells processes apart (default: a random one)."""
        self.name = name
        self.session = session or secrets.token_hex(8)
        self.epoch = 0  # the highest followed so far
        self.empty = "this coordinator is still starting"  # why no leader is followed
        self._outgoing_max = outgoing_max
        self._hello_deadline_s = hello_deadline_s
        self._leaderless_s = leaderless_s
        self._uplink: Uplink | None = None
        self._gathering = Gathering(lambda message: None)  # nobody to send to
        self._streams: dict[str, ShimStream] = {}
        self._attached: dict[int, ShimStream] = {}
        self._attachment = 0  # the last number given, as the next
        self._opened = 0
        self._timer: asyncio.TimerHandle | None = None

    @property
    def nodes(self) -> tuple[str, ...]:
        """Nodes that have a stream here now."""
        return tuple(self._streams)

    @property
    def following(self) -> Uplink | None:
        """The leader that is followed now."""
        return self._uplink

    @property
    def behind(self) -> bool:
        """Whether shims should be read more slowly, since the leader is behind."""
        return self._uplink is not None and self._uplink.behind

    # -- the leader --------------------------------------------------------------------------------

    def follow(self, uplink: Uplink) -> None:
        """From now on this leader is passed on; raises Fenced for one of the past."""
        if uplink.epoch < self.epoch:
            raise Fenced(
                f"{uplink.coordinator} leads in epoch {uplink.epoch}, but epoch {self.epoch} was"
                " followed here already",
                advice="nothing to do: that coordinator is not the leader any more",
            )
        self.unfollow(LinkError(f"{uplink.coordinator} leads now, in epoch {uplink.epoch}"))
        self._uplink, self.epoch = uplink, uplink.epoch
        self._gathering = Gathering(uplink.send)
        for stream in list(self._streams.values()):
            self._gathering.welcomed(stream.number)
            if not stream.welcome(self._welcome(uplink), uplink.check):
                self._end(stream)
        self._set_timer(self._hello_deadline_s, self._overdue)
        log.info("following", leader=uplink.coordinator, epoch=uplink.epoch)

    def unfollow(self, why: AllstopError, uplink: Uplink | None = None) -> None:
        """No leader is followed from now on; with `uplink` only if that is the one followed.

        What it had said and was not sent yet is taken back. Streams are kept, but for those whose
        first Welcome had not gone out: their shims dial again.
        """
        left = self._uplink
        if left is None or (uplink is not None and uplink is not left):
            return
        self._uplink, self.empty = None, why.what
        self._gathering.close()
        self._attached.clear()
        for stream in list(self._streams.values()):
            stream.forget()
            if not stream.welcomed:
                self.lose(stream, self._no_leader())
        self._set_timer(self._leaderless_s, self._send_away)
        log.info("not following any more", leader=left.coordinator, epoch=left.epoch, why=why.what)
        left.close(why)

    def close(self, why: AllstopError) -> None:
        """End every stream: this process ends."""
        self.unfollow(why)
        self._set_timer(0.0, None)
        for stream in list(self._streams.values()):
            self.lose(stream, why)

    def take(self, uplink: Uplink, message: carrier_pb2.LeaderMessage) -> None:
        """Pass on what a leader says; one that is not followed is not heard."""
        if uplink is not self._uplink or message.epoch != uplink.epoch:
            log.warning("message of a leader that is not followed ignored", epoch=message.epoch)
            return
        for delivery in message.deliveries:
            self._deliver(uplink, delivery)
        for dismissal in message.dismissals:
            stream = self._attached.get(dismissal.attachment)
            if stream is not None:
                self._attached.pop(stream.attachment)
                stream.attachment = 0  # the leader has given it up already
                self.lose(stream, unpacked(dismissal.error))

    def _deliver(self, uplink: Uplink, delivery: carrier_pb2.Delivery) -> None:
        message, kind = delivery.message, delivery.message.WhichOneof("body")
        for index, attachment in enumerate(delivery.attachments):
            stream = self._attached.get(attachment)
            if stream is None:
                continue  # its loss is on its way to the leader
            if kind == "order":
                message = _for_worker(delivery.message, delivery.workers[index])
                self._gathering.ordered(attachment, message.order)
            elif kind == "question":
                self._gathering.asked(attachment, message.question.question)
            if not stream.send(message, uplink.check):
                self._end(stream)

    def _welcome(self, uplink: Uplink) -> shim_pb2.CoordinatorMessage:
        return wire.welcome_message(uplink.epoch, uplink.coordinator, uplink.report_interval_ms)

    def _no_leader(self) -> NoLeader:
        return NoLeader(
            f"no leader yet: {self.empty}", advice="try again, or ask another coordinator"
        )

    # -- shims -------------------------------------------------------------------------------------

    def attach(self, hello: shim_pb2.Hello) -> ShimStream:
        """Take a shim in: Welcome is queued, the leader is told.

        An older stream of the node is lost first, even when the shim has just dialled again and
        the old connection is not known to be dead: what was on its wire may be lost. Raises
        NoLeader while nobody is followed, and Fenced when a newer leader has spoken to this shim,
        or when this is the older of two streams.
        """
        facts = wire.facts_of(hello.facts)
        where = Where(node=facts.node)
        uplink = self._uplink
        if uplink is None:
            raise self._no_leader()
        self._require_past(hello, uplink, where)
        older = self._streams.get(facts.node)
        if older is not None:
            if wire.is_older(hello, older.session, older.hello):
                raise Fenced("a newer stream of this shim is open", where=where)
            self.lose(older, Fenced("another stream of this node was opened", where=where))
        self._opened += 1
        stream = ShimStream(
            facts.node, hello.session, number=self._opened, outgoing_max=self._outgoing_max
        )
        stream.welcome(self._welcome(uplink), uplink.check)
        self._streams[facts.node] = stream
        self._number(stream, hello)
        self._gathering.hello(stream.attachment, hello)
        log.info("shim attached", node=facts.node, session=hello.session, address=facts.address)
        return stream

    def say(self, stream: ShimStream, message: shim_pb2.ShimMessage) -> None:
        """Pass on what a shim says; dropped while the leader has not had its Hello.

        Raises BadRequest or Fenced for what cannot be: the caller loses the stream then.
        """
        if self._streams.get(stream.node) is not stream:
            return
        if message.WhichOneof("body") is None:
            return  # a sign of life, or what a newer shim says
        if message.HasField("report"):
            wire.check_report(stream.node, message.report)
        if message.HasField("hello"):
            self._hello_again(stream, message.hello)
        elif not stream.attachment:
            return
        elif message.HasField("results"):
            for result in message.results.results:
                self._gathering.say(stream.attachment, shim_pb2.ShimMessage(result=result))
        else:
            self._gathering.say(stream.attachment, message)

    def lose(self, stream: ShimStream, why: AllstopError) -> None:
        """The stream is gone without Goodbye; only the first call for a stream does anything."""
        attachment = self._detach(stream, why)
        if attachment is None:
            return
        reason = (stream.ending or why).what
        log.warning("shim lost", node=stream.node, session=stream.session, reason=reason)
        if attachment:
            self._gathering.lost(attachment, reason)

    def leave(self, stream: ShimStream, reason: str) -> None:
        """The shim said Goodbye."""
        stream.left = True
        attachment = self._detach(
            stream, LinkError(f"the shim left: {reason}", where=Where(node=stream.node))
        )
        if attachment is None:
            return
        log.info("shim left", node=stream.node, session=stream.session, reason=reason)
        if attachment:
            self._gathering.left(attachment, reason)

    def _hello_again(self, stream: ShimStream, hello: shim_pb2.Hello) -> None:
        """The answer to a Welcome on a standing stream."""
        where = Where(node=stream.node)
        if not stream.hellos_due or not stream.welcomed:
            raise BadRequest("a second Hello on one stream", where=where)
        if hello.facts.node != stream.node or hello.session != stream.session:
            raise BadRequest("a Hello of another shim on this stream", where=where)
        wire.facts_of(hello.facts)
        stream.hellos_due -= 1
        if self._uplink is None or stream.hellos_due:
            return  # it answers a leader that is not followed any more
        self._require_past(hello, self._uplink, where)
        self._number(stream, hello)
        self._gathering.hello(stream.attachment, hello, stream.number)

    def _require_past(self, hello: shim_pb2.Hello, uplink: Uplink, where: Where) -> None:
        if hello.highest_epoch > uplink.epoch:
            raise Fenced(
                f"the leader here is of epoch {uplink.epoch}, but the shim has already obeyed"
                f" epoch {hello.highest_epoch}",
                where=where,
                advice="dial the newer coordinator",
            )

    def _number(self, stream: ShimStream, hello: shim_pb2.Hello) -> None:
        """Each Hello that is passed on begins an attachment of its own."""
        stream.hello = hello.number
        self._attachment += 1
        stream.attachment = self._attachment
        self._attached[self._attachment] = stream

    def _end(self, stream: ShimStream) -> None:
        assert stream.ending is not None
        self.lose(stream, stream.ending)

    def _detach(self, stream: ShimStream, why: AllstopError) -> int | None:
        """Its last attachment (0: none), or None when it had gone before."""
        if self._streams.get(stream.node) is not stream:
            return None
        del self._streams[stream.node]
        attachment, stream.attachment = stream.attachment, 0
        self._attached.pop(attachment, None)
        stream.end(why)
        return attachment

    # -- time --------------------------------------------------------------------------------------

    def _set_timer(self, delay_s: float, call: object) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if callable(call):
            self._timer = asyncio.get_running_loop().call_later(delay_s, call)

    def _overdue(self) -> None:
        """Shims that have not answered the leader's Welcome hang, or are of an older version."""
        for stream in list(self._streams.values()):
            if stream.hellos_due and stream.welcomed:
                late = f"no Hello within {self._hello_deadline_s:g} s of the new leader's Welcome"
                self.lose(stream, DeadlinePassed(late, where=Where(node=stream.node)))

    def _send_away(self) -> None:
        for stream in list(self._streams.values()):
            self.lose(stream, self._no_leader())


def _for_worker(message: shim_pb2.CoordinatorMessage, worker: int) -> shim_pb2.CoordinatorMessage:
    """The order for one worker out of an order for many."""
    if message.order.worker == worker:
        return message
    single = shim_pb2.CoordinatorMessage()
    single.CopyFrom(message)
    single.order.worker = worker
    return single
