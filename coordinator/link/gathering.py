"""What a carrier's shims say, gathered into few messages for the leader."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable

from allstop.v1 import carrier_pb2, records_pb2, shim_pb2

RESULTS_WAIT_S = 0.02  # a success waits so long for the rest of its round,
RESULTS_WAIT_MAX_S = 0.16  # and in a long round later ones twice as long each time, up to this
REPORTS_WAIT_S = 0.1
REPEAT_S = 3.0  # a report that says nothing new is passed on so often
ITEMS_MAX = 512  # so many do not wait any longer
MESSAGE_BYTES = 1 << 20  # a message is closed when it has so many
ROUNDS_MAX = 256

Round = tuple[str, int]  # action and phase of orders; "" and the number of a question
Part = tuple[str, int]  # job and worker
Words = shim_pb2.ShimMessage | str  # a message, or why the stream was lost
HELLOS: Round = ("hello", -1)
QUESTIONED: Part = ("", 0)


class Gathering:
    """Waits for the shims of a round and speaks for all of them; made anew for each leader.

    A success waits until its round is complete or RESULTS_WAIT_S have passed (more in a long
    round), a report for REPORTS_WAIT_S; everything else goes in this turn of the loop. Whatever
    goes takes along all that was said before it, so that a shim's words never change places.

    Nobody is kept waiting by this: the leader goes on when the last one of a round has answered,
    and that one does not wait.
    """

    def __init__(self, send: Callable[[carrier_pb2.CarrierMessage], None]) -> None:
        """`send` must not block; it is called from the loop's timers."""
        self._send = send
        self._said: dict[int, tuple[int, Words]] = {}  # by whom and what, in the order of saying
        self._number = 0
        self._rounds: OrderedDict[Round, dict[int, set[Part]]] = OrderedDict()  # by attachment
        self._report_at: dict[int, int] = {}  # attachment -> number of its report that waits
        self._passed: dict[int, tuple[bytes, float]] = {}  # attachment -> last report and when
        self._wait_s = RESULTS_WAIT_S
        self._waits = False  # an answer for the rest of its round
        self._timer: asyncio.TimerHandle | None = None
        self._closed = False

    # -- what is asked of shims --------------------------------------------------------------------

    def welcomed(self, stream: int) -> None:
        """A standing stream (any number of its own) is to answer the new leader with a Hello."""
        self._await(HELLOS, stream, QUESTIONED)

    def ordered(self, attachment: int, order: shim_pb2.Order) -> None:
        """An order goes to a shim: its round is waited for."""
        self._await((order.action, order.phase), attachment, (order.job, order.worker))

    def asked(self, attachment: int, question: int) -> None:
        """A question goes to a shim."""
        self._await(("", question), attachment, QUESTIONED)

    def _await(self, key: Round, attachment: int, part: Part) -> None:
        missing = self._rounds.get(key)
        if missing is None:
            missing = self._rounds[key] = {}
            if len(self._rounds) > ROUNDS_MAX:
                self._rounds.popitem(last=False)
        missing.setdefault(attachment, set()).add(part)

    # -- what shims say ----------------------------------------------------------------------------

    def hello(self, attachment: int, hello: shim_pb2.Hello, stream: int = 0) -> None:
        """A new attachment; with `stream` the answer of a standing stream to a new leader."""
        self._put(attachment, shim_pb2.ShimMessage(hello=hello))
        self._answer_within(not stream or self._answered(HELLOS, stream, QUESTIONED))

    def say(self, attachment: int, message: shim_pb2.ShimMessage) -> None:
        """What an attached shim says after its Hello."""
        kind = message.WhichOneof("body")
        if kind == "report":
            self._report(attachment, message)
            return
        self._put(attachment, message)
        if kind == "result":
            result = message.result
            key, part = (result.action, result.phase), (result.job, result.worker)
            complete = self._answered(key, attachment, part)
            self._answer_within(complete, hurry=result.HasField("failure"))
        elif kind == "answer":
            complete = self._answered(("", message.answer.question), attachment, QUESTIONED)
            self._answer_within(complete)
        else:
            self._within(REPORTS_WAIT_S if kind in ("progress", "doing") else 0.0)

    def left(self, attachment: int, reason: str) -> None:
        """The shim said Goodbye."""
        self.say(attachment, shim_pb2.ShimMessage(goodbye=shim_pb2.Goodbye(reason=reason)))
        self._forget(attachment)

    def lost(self, attachment: int, reason: str) -> None:
        """The shim's stream ended without Goodbye."""
        self._put(attachment, reason)
        self._forget(attachment)
        self._within(0.0)

    def _answered(self, key: Round, attachment: int, part: Part) -> bool:
        """Whether nobody of this round is waited for any more; true for what nobody waited for."""
        missing = self._rounds.get(key, {})
        parts = missing.get(attachment, set())
        if part not in parts:
            return True
        parts.discard(part)
        if not parts:
            self._forget_in(key, attachment)
        return not missing

    def _forget_in(self, key: Round, attachment: int) -> None:
        self._rounds[key].pop(attachment, None)
        if not self._rounds[key]:
            del self._rounds[key]

    def _forget(self, attachment: int) -> None:
        self._report_at.pop(attachment, None)
        self._passed.pop(attachment, None)
        for key in list(self._rounds):
            self._forget_in(key, attachment)

    def _report(self, attachment: int, message: shim_pb2.ShimMessage) -> None:
        """A later report takes the place of one that waits; one without news is left out.

        The leader decides anew at every report about a worker that is no job's yet, so that one is
        passed on always; the others now and then.
        """
        report, now = message.report, asyncio.get_running_loop().time()
        workers = shim_pb2.Report(workers=report.workers).SerializeToString(deterministic=True)
        before, at = self._passed.get(attachment, (None, 0.0))
        undecided = any(not worker.incarnation for worker in report.workers)
        news = undecided or report.HasField("facts") or workers != before
        if not news and now - at < REPEAT_S:
            return
        self._passed[attachment] = (workers, now)
        _, older = self._said.pop(self._report_at.get(attachment, 0), (0, None))
        if isinstance(older, shim_pb2.ShimMessage) and not report.HasField("facts"):
            report.MergeFrom(shim_pb2.Report(facts=_facts(older)))
        self._report_at[attachment] = self._put(attachment, message)
        self._within(REPORTS_WAIT_S)

    # -- what goes ---------------------------------------------------------------------------------

    def _put(self, attachment: int, words: Words) -> int:
        self._number += 1
        self._said[self._number] = attachment, words
        return self._number

    def _answer_within(self, complete: bool, *, hurry: bool = False) -> None:
        """An answer goes at once when its round is complete; others have waited long enough too."""
        if complete:
            self._wait_s, self._waits = RESULTS_WAIT_S, False
        elif not hurry:
            self._waits = True
        self._within(0.0 if complete or hurry else self._wait_s)

    def _within(self, wait_s: float) -> None:
        """See to it that all that was said goes in so many seconds at most."""
        if self._closed:
            return
        if len(self._said) >= ITEMS_MAX:
            wait_s = 0.0
        loop = asyncio.get_running_loop()
        due = loop.time() + wait_s
        if self._timer is not None:
            if self._timer.when() <= due:
                return
            self._timer.cancel()
        self._timer = loop.call_at(due, self.flush)

    def flush(self) -> None:
        """Send all that was said, in order, in as few messages as their size allows."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._waits:  # the round is not complete yet
            self._waits = False
            self._wait_s = max(self._wait_s, min(2 * self._wait_s, RESULTS_WAIT_MAX_S))
        said, self._said = list(self._said.values()), {}
        self._report_at.clear()
        batch, size_bytes = carrier_pb2.CarrierMessage(), 0
        for attachment, words in said:
            each = batch.said.add(attachment=attachment)
            if isinstance(words, str):
                each.lost = words
            else:
                each.message.CopyFrom(words)
                size_bytes += words.ByteSize()
            if size_bytes >= MESSAGE_BYTES:
                self._send(batch)
                batch, size_bytes = carrier_pb2.CarrierMessage(), 0
        if batch.said:
            self._send(batch)

    def close(self) -> None:
        """Forget what was said: nobody is to hear it any more."""
        self._closed = True
        self._said.clear()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


def _facts(message: shim_pb2.ShimMessage) -> records_pb2.NodeFacts | None:
    """The facts in a report, if it has any."""
    return message.report.facts if message.report.HasField("facts") else None
