"""All shims that a leader reaches, through its own carrier and through those of other replicas."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import structlog
from allstop.v1 import carrier_pb2, shim_pb2

from coordinator.core import commands, events
from coordinator.core.errors import AllstopError, BadRequest, Fenced, LinkError, Where
from coordinator.core.failures import failure_of
from coordinator.core.logs import LogPart, LogPlace
from coordinator.core.model import NodeFacts, ProgramFile
from coordinator.link import telling, wire
from coordinator.link.deliveries import Deliveries
from coordinator.link.mapping import as_allstop
from coordinator.link.meetings import Meetings
from coordinator.link.stream import always
from coordinator.link.uplink import Downlink
from coordinator.link.verifying import Verifications

log = structlog.get_logger(__name__)

REPORT_INTERVAL_MS = 1_000
QUESTION_DEADLINE_S = 1.0
LOGS_DEADLINE_S = 5.0
HELLOS_MAX = 100_000


@dataclass(eq=False)
class Branch:
    """One carrier that follows this leader, with the shims it has."""

    name: str
    session: str
    downlink: Downlink
    near: bool = False  # of this very process
    places: dict[int, Place] = field(default_factory=dict)  # by attachment
    outgoing: Deliveries = field(default_factory=Deliveries)


@dataclass(eq=False)
class Place:
    """Where a node is: behind which carrier, under which attachment."""

    node: str
    session: str
    branch: Branch
    attachment: int
    jobs: set[str] = field(default_factory=set)  # that it has, or was given, workers of


class Hub:
    """The shims of one leadership. What happens to them is given to `tell`, in order.

    A node is lost the moment its stream, or its carrier, is gone without Goodbye: an order may
    have been on the wire, and only the core may decide what that means. There is no grace time.
    Orders go out at the end of a turn of the loop, one message for each carrier; without gRPC and
    without tasks of its own.
    """

    def __init__(
        self,
        epoch: int,
        coordinator: str,
        tell: Callable[[events.Event], None],
        *,
        progressed: Callable[[shim_pb2.Progress], None] = lambda progress: None,
        answered: Callable[[str, shim_pb2.OrderResult], None] = lambda node, result: None,
        check: Callable[[], None] = always,
        behind: Callable[[], bool] = lambda: False,
        report_interval_ms: int = REPORT_INTERVAL_MS,
    ) -> None:
        """`tell` must not block: losses may not wait behind a full queue.

        `check` raises Fenced once the right to lead has ended: nothing is sent then, whenever it
        was decided. `behind` tells carriers to read their shims more slowly. `answered` hears of
        each answer beside the core, after it.
        """
        self.epoch = epoch
        self.coordinator = coordinator
        self.report_interval_ms = report_interval_ms
        self.check = check
        self.behind = behind
        self.messages_handled = 0  # of carriers, signs of life not counted
        self._tell = tell
        self._progressed = progressed
        self._was_answered = answered
        self._branches: dict[Branch, None] = {}
        self._places: dict[str, Place] = {}
        self._hellos: OrderedDict[str, tuple[str, int]] = OrderedDict()  # node -> its last Hello
        self._questions: dict[tuple[int, str], asyncio.Future[Any]] = {}
        self._question = 0
        self.verifications = Verifications(epoch, self._send)
        self._meetings: Meetings[Place] = Meetings(epoch, self._share)
        self._shared = 0
        self._flushing: asyncio.Handle | None = None
        self._closed: AllstopError | None = None

    @property
    def nodes(self) -> tuple[str, ...]:
        """Nodes that can be reached now."""
        return tuple(self._places)

    @property
    def carriers(self) -> tuple[str, ...]:
        """Names of the carriers that follow."""
        return tuple(branch.name for branch in self._branches)

    # -- carriers ----------------------------------------------------------------------------------

    def join(self, name: str, session: str, downlink: Downlink, *, near: bool = False) -> Branch:
        """A carrier follows; an older link of the same process is lost first, with all its nodes.

        Raises what the hub was closed with, and LinkError for a carrier of this very process that
        comes over the network: it looked for a leader of the past at what is our address now.
        """
        if self._closed is not None:
            raise self._closed
        for older in [each for each in self._branches if each.session == session]:
            if older.near and not near:
                raise LinkError("this carrier is in the leader's own process, and follows there")
            self.part(older, Fenced("the carrier opened another link"))
        branch = Branch(name, session, downlink, near)
        self._branches[branch] = None
        log.info("carrier joined", carrier=name, session=session)
        return branch

    def part(self, branch: Branch, why: AllstopError) -> None:
        """The carrier is gone: so are its nodes. Only the first call does anything."""
        if branch not in self._branches:
            return
        del self._branches[branch]
        if branch.places:
            log.warning("carrier lost", carrier=branch.name, nodes=len(branch.places), why=why.what)
        for place in list(branch.places.values()):
            self._lost(place, f"its carrier {branch.name} was lost: {why.what}")
        branch.downlink.end(why)

    def take(self, branch: Branch, message: carrier_pb2.CarrierMessage) -> None:
        """What shims said to a carrier; of one that has parted nothing is heard any more."""
        if branch not in self._branches or not message.said:
            return
        self.messages_handled += 1
        for said in message.said:
            place = branch.places.get(said.attachment)
            try:
                self._said(branch, place, said)
            except Exception as error:  # a defect ends this shim's stream, like bad words
                if not isinstance(error, AllstopError):
                    log.exception("the words of a shim broke us", carrier=branch.name)
                node = place.node if place is not None else said.message.hello.facts.node
                self._dismiss(branch, said.attachment, as_allstop(error).at(node=node))

    def close(self, why: AllstopError) -> None:
        """Let go of every carrier; nothing is told any more: the leadership is over."""
        self._closed = why
        self._tell = lambda event: None
        self._meetings.close()
        if self._flushing is not None:
            self._flushing.cancel()
            self._flushing = None
        for branch in list(self._branches):
            self.part(branch, why)

    # -- what shims say ----------------------------------------------------------------------------

    def _said(self, branch: Branch, place: Place | None, said: carrier_pb2.Said) -> None:
        kind = said.message.WhichOneof("body")
        if kind == "hello":
            self._attach(branch, said.attachment, said.message.hello)
        elif place is None:
            return  # its stream was given up before this came
        elif said.WhichOneof("body") == "lost":
            self._lost(place, said.lost)
        elif kind == "goodbye":
            self._forget(place)
            self._tell(events.NodeLeft(place.node, place.session, said.message.goodbye.reason))
        else:
            self._heard(place, kind, said.message)

    def _heard(self, place: Place, kind: str | None, message: shim_pb2.ShimMessage) -> None:
        if kind == "progress":
            self._progressed(message.progress)
        elif kind == "doing":
            self.verifications.progressed(message.doing)
        elif kind in ("answer", "log"):
            self._question_answered(place, message)
        elif kind == "result":
            self._tell(wire.result_event(place.node, message.result))
            self._was_answered(place.node, message.result)
        elif kind == "report":
            self._tell(wire.report_event(place.node, place.session, message.report))
        elif kind in ("exited", "notice", "troubles"):
            self._tell(telling.told_event(place.node, message))
        elif kind == "meeting":
            self._meets(place, message.meeting)
        elif kind == "done":
            if not self.verifications.take(place.node, message.done):
                self._tell(wire.task_event(place.node, message.done))
        else:
            log.warning("unknown message of a newer shim ignored", node=place.node)

    def _question_answered(self, place: Place, message: shim_pb2.ShimMessage) -> None:
        if message.HasField("answer"):
            facts = replace(wire.facts_of(message.answer.facts), node=place.node)
            self._answered(place.node, message.answer.question, facts)
        else:
            self._answered(place.node, message.log.question, wire.log_parts_of(message.log))

    def _meets(self, place: Place, said: shim_pb2.Meeting) -> None:
        """Pass on what ranks set, among nodes that have workers of their job."""
        if said.job not in place.jobs:
            raise BadRequest(
                f"{place.node} has no worker of job {said.job!r}, and spoke for its ranks",
                where=Where(node=place.node),
            )
        self._meetings.hear(place, said)

    def _attach(self, branch: Branch, attachment: int, hello: shim_pb2.Hello) -> None:
        """A node is behind this carrier now; wherever it was before, it is lost there first.

        A Hello that was overtaken by a later one of the same shim, on another way, is not heard.
        """
        facts = wire.facts_of(hello.facts)
        workers = wire.workers_of(hello.workers)
        where = Where(node=facts.node)
        if wire.is_older(hello, *self._hellos.get(facts.node, ("", 0))):
            raise Fenced("a newer stream of this shim was opened", where=where)
        self._hellos[facts.node] = (hello.session, hello.number)
        if len(self._hellos) > HELLOS_MAX:
            self._hellos.popitem(last=False)
        older = self._places.get(facts.node)
        if older is not None:
            why = Fenced("another stream of this node was opened", where=where)
            self._dismiss(older.branch, older.attachment, why)
        place = Place(facts.node, hello.session, branch, attachment, {w.job for w in workers})
        self._places[facts.node] = branch.places[attachment] = place
        self._tell(events.NodeAttached(facts, hello.session, workers))

    def _dismiss(self, branch: Branch, attachment: int, why: AllstopError) -> None:
        place = branch.places.get(attachment)
        if place is not None:
            self._lost(place, why.what)
        branch.outgoing.dismiss(attachment, why)
        self._flush_soon()

    def _lost(self, place: Place, reason: str) -> None:
        self._forget(place)
        self._tell(events.NodeLost(place.node, place.session, reason))

    def _forget(self, place: Place) -> None:
        del self._places[place.node]
        del place.branch.places[place.attachment]
        self._meetings.forget(place)
        for number, node in [key for key in self._questions if key[1] == place.node]:
            self._questions.pop((number, node)).cancel()
        self.verifications.lose(place.node)

    # -- what goes out -----------------------------------------------------------------------------

    def order(self, order: commands.SendOrder) -> bool:
        """Send an order; False when the node is not reached (its loss has been told)."""
        place = self._places.get(order.node)
        if place is None:
            return False
        place.branch.outgoing.order(place.attachment, order)
        place.jobs.add(order.job)
        self._flush_soon()
        return True

    def fence(self, fence: commands.FenceWorkers) -> bool:
        """Tell a shim which of its workers may not go on."""
        return self._send(fence.node, wire.fence_message(self.epoch, fence.reason, fence.workers))

    def admit(self, admission: commands.AdmitWorker) -> bool:
        """Tell a shim that its worker is the job's, and in which incarnation."""
        return self._send(admission.node, wire.admitted_message(self.epoch, admission))

    def defer(self, deferral: commands.DeferWorker) -> bool:
        """Tell a shim why its worker is not the job's yet."""
        return self._send(deferral.node, wire.waiting_message(self.epoch, deferral))

    def stay(self, stay: commands.StayOn) -> bool:
        """Tell a shim not to leave yet."""
        return self._send(stay.node, telling.stay_message(self.epoch, stay))

    def refuse_notice(self, refusal: commands.RefuseNotice) -> bool:
        """Tell a shim that what it was told asks for more than can be done."""
        return self._send(refusal.node, telling.notice_refused_message(refusal))

    def task(self, task: commands.SendTask) -> bool:
        """Have a shim look at or clean the image store; what cannot be sent is answered here."""
        try:
            return self._send(task.node, wire.task_message(task))
        except AllstopError as error:
            answer = events.TaskAnswered(task.epoch, task.node, task.task, failure_of(error))
            self._tell(answer)
            return False

    def _send(self, node: str, message: shim_pb2.CoordinatorMessage) -> bool:
        place = self._places.get(node)
        if place is None:
            return False
        place.branch.outgoing.add(place.attachment, message)
        self._flush_soon()
        return True

    def _share(self, places: Iterable[Place], message: shim_pb2.CoordinatorMessage) -> None:
        self._shared += 1
        for place in places:
            place.branch.outgoing.share(place.attachment, ("meeting", self._shared), message)
        self._flush_soon()

    def _flush_soon(self) -> None:
        if self._flushing is None and self._closed is None:
            self._flushing = asyncio.get_running_loop().call_soon(self.flush)

    def flush(self) -> None:
        """Send what this turn of the loop has decided; nothing when the right to lead has ended."""
        if self._flushing is not None:
            self._flushing.cancel()
            self._flushing = None
        decided = [(branch, branch.outgoing) for branch in self._branches if branch.outgoing]
        for branch, _ in decided:
            branch.outgoing = Deliveries()
        try:
            self.check()
        except AllstopError as error:
            log.warning("nothing is sent any more", why=error.what)
            return
        for branch, outgoing in decided:
            try:
                for message in outgoing.messages(self.epoch):
                    branch.downlink.send(message)
            except Exception as error:  # it may not have all of it, so it has to look anew
                log.exception("orders could not be handed to a carrier", carrier=branch.name)
                self.part(branch, as_allstop(error))

    # -- questions ---------------------------------------------------------------------------------

    async def ask(
        self, files: Sequence[ProgramFile], *, deadline_s: float = QUESTION_DEADLINE_S
    ) -> tuple[NodeFacts, ...]:
        """Ask every node for these program files.

        Nodes that do not answer in time are left out: nothing is known of their files then.
        """
        self._question += 1
        message = wire.question_message(self._question, tuple(files))
        answers = await self._ask(self._question, dict.fromkeys(self._places, message), deadline_s)
        return tuple(answers.values())

    async def ask_logs(
        self,
        job: str,
        places: Mapping[str, Sequence[LogPlace]],
        *,
        deadline_s: float = LOGS_DEADLINE_S,
    ) -> dict[str, tuple[LogPart, ...]]:
        """Ask nodes for the output of workers of a job; those without an answer are left out."""
        self._question += 1
        number = self._question
        messages = {
            node: wire.log_question_message(number, job, wanted) for node, wanted in places.items()
        }
        return await self._ask(number, messages, deadline_s)

    async def _ask(
        self, number: int, messages: Mapping[str, shim_pb2.CoordinatorMessage], deadline_s: float
    ) -> dict[str, Any]:
        """Put a question to each node, and wait for the answers; what is late is left out."""
        loop = asyncio.get_running_loop()
        waiting: dict[str, asyncio.Future[Any]] = {}
        for node, message in messages.items():
            place = self._places.get(node)
            if place is None:
                continue
            waiting[node] = self._questions[number, node] = loop.create_future()
            if message.HasField("question"):  # the same for everybody
                place.branch.outgoing.share(place.attachment, number, message)
            else:
                place.branch.outgoing.add(place.attachment, message)
            self._flush_soon()
        try:
            if waiting:
                await asyncio.wait(waiting.values(), timeout=deadline_s)
        finally:
            for node in waiting:
                self._questions.pop((number, node), None)
        return {
            node: answer.result()
            for node, answer in waiting.items()
            if answer.done() and not answer.cancelled()
        }

    def _answered(self, node: str, question: int, answer: Any) -> None:
        """A shim's answer to a question; late ones are dropped."""
        waiting = self._questions.pop((question, node), None)
        if waiting is not None and not waiting.done():
            waiting.set_result(answer)
