"""The node's agent: takes what coordinators say to the workers, and says how these are."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import time
from collections.abc import Callable, Coroutine
from functools import partial

import structlog
from allstop.v1 import shim_pb2

from coordinator.core.errors import AllstopError, Fenced, NotFound, Where
from coordinator.core.failures import failure_of
from coordinator.core.logs import LogPart, LogPlace
from coordinator.core.model import NodeFacts, WorkerState
from worker_shim.agent import logs, wire
from worker_shim.agent.fence import Fence
from worker_shim.agent.lane import Lane
from worker_shim.agent.looking import Looker
from worker_shim.agent.news import is_news
from worker_shim.agent.order import Deadline, Order, Outcome
from worker_shim.agent.ports import LOG, Drivers
from worker_shim.agent.tasks import StoreTasks
from worker_shim.agent.undoing import put_out
from worker_shim.agent.worker import Worker
from worker_shim.facts import NodeProbe

log = structlog.get_logger(__name__)

REPORT_INTERVAL_S = 1.0
HEARTBEAT_INTERVALS = 5  # of silence, then a sign of life, with what changes all the time
PROGRESS_INTERVAL_S = 0.5
QUESTIONS_MAX = 8

Send = Callable[[shim_pb2.ShimMessage], bool]


class Agent:
    """Everything of this node that outlives a stream; `send` may be told False: not connected."""

    def __init__(
        self,
        drivers: Drivers,
        fence: Fence,
        probe: NodeProbe,
        finished: Callable[[Order, Outcome], None] = lambda order, outcome: None,
    ) -> None:
        """Nothing runs before `reporting` is awaited and messages come in.

        `finished` hears of each order once, when it has ended.
        """
        self.drivers = drivers
        self.session = secrets.token_hex(8)
        self.send: Send = lambda message: False
        self.welcomed = asyncio.Event()
        self.notice_refused: Callable[[shim_pb2.NoticeRefused], None] = lambda message: None
        self._fence = fence
        self._probe = probe
        self._finished = finished
        self._looker = Looker()
        self._store_tasks = StoreTasks(drivers.store, lambda: probe.current().node)
        self._lanes: dict[tuple[str, int], Lane] = {}
        self._changed = asyncio.Event()
        self._pulse = asyncio.Event()
        self._told: NodeFacts | None = None
        self._told_states: tuple[WorkerState, ...] = ()
        self._told_at = 0.0
        self._hellos = 0
        self._interval_s = REPORT_INTERVAL_S
        self._stays: dict[str, float] = {}  # by job, until when its restore is awaited here
        self._progressed: dict[tuple[str, int, str], float] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    # -- workers -----------------------------------------------------------------------------------

    def worker(self, job: str, worker: int) -> Worker:
        """The worker of that name; one that is not on this node yet has an empty state."""
        return self._lane(job, worker).worker

    def _lane(self, job: str, worker: int) -> Lane:
        key = (job, worker)
        if key not in self._lanes:
            made = Worker(
                job,
                worker,
                self.drivers,
                exited=self._exited,
                changed=self._note,
                beside=partial(self._beside, job, worker),
            )
            self._lanes[key] = Lane(
                made, self._answer, self._progress, self._fence.require, self._finished
            )
        return self._lanes[key]

    def lanes(self) -> tuple[Lane, ...]:
        """Every worker's, whether it is here or not."""
        return tuple(self._lanes.values())

    def _beside(self, job: str, worker: int) -> tuple[Worker, ...]:
        """The other workers of that job that are on this node, ended ones too."""
        lanes = ((key, lane) for key, lane in self._lanes.items() if lane.worker.state)
        return tuple(lane.worker for (of, n), lane in lanes if of == job and n != worker)

    def states(self) -> tuple[WorkerState, ...]:
        """Every worker that is here, as last looked at."""
        workers = (lane.worker for lane in self._lanes.values())
        return tuple(worker.report() for worker in workers if worker.state)

    def now(self) -> tuple[tuple[WorkerState, float], ...]:
        """Every worker that is here, with the seconds its dead-man timer has left."""
        lanes = [lane for lane in self._lanes.values() if lane.worker.state]
        return tuple((lane.worker.report(), lane.timer.left_s) for lane in lanes)

    @property
    def hellos(self) -> int:
        """How many times a leader was told how it is here; each of them has heard it anew."""
        return self._hellos

    @property
    def busy(self) -> bool:
        """Whether a worker lives here, or an attempt or restore has one."""
        return any(
            lane.busy or lane.worker.alive or lane.worker.action for lane in self._lanes.values()
        )

    def stays(self, job: str) -> bool:
        """Whether a leader has said that the job is to be restored, and no shim is to leave."""
        return time.monotonic() < self._stays.get(job, 0.0)

    @property
    def copying(self) -> bool:
        """Whether something still reads or writes the image store."""
        return any(lane.worker.copying for lane in self._lanes.values())

    @property
    def restored(self) -> tuple[Worker, ...]:
        """What a restore has brought here; one whose `action` is set stands still yet."""
        workers = (lane.worker for lane in self._lanes.values())
        return tuple(each for each in workers if each.restored_by and each.state)

    def _exited(self, worker: Worker) -> None:
        log.info("worker ended", worker=worker.name, exit_code=worker.exit_code)
        self.send(wire.exited_message(worker.report(), worker.log_tail(), worker.last_step()))
        self._note(worker)

    def _note(self, worker: Worker | None = None) -> None:
        """Something changed: report it, and wake whoever waits for a change."""
        self._changed.set()
        self._pulse.set()
        self._pulse = asyncio.Event()

    async def change(self, *, at_most_s: float) -> None:
        """Wait until something changes here, or so long."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(at_most_s):
                await self._pulse.wait()

    # -- what a stream brings ----------------------------------------------------------------------

    def hello(self) -> shim_pb2.ShimMessage:
        """What a leader hears first, on a new stream or after its Welcome on a standing one."""
        self._told, self._told_states = self._probe.refresh(), self.states()
        self._hellos += 1
        return wire.hello_message(
            self._told,
            self._told_states,
            highest_epoch=self._fence.highest,
            session=self.session,
            number=self._hellos,
        )

    def on_welcome(self, welcome: shim_pb2.Welcome) -> None:
        """A coordinator took us; raises Fenced when it is one of the past."""
        self._fence.admit(welcome.epoch)
        if welcome.report_interval_ms:
            self._interval_s = welcome.report_interval_ms / 1000
        log.info("attached", coordinator=welcome.coordinator, epoch=welcome.epoch)
        self.welcomed.set()
        # Not at once: a new stream sends from here on, and a standing one its Hello first.
        asyncio.get_running_loop().call_soon(self.drivers.endpoint.meetings.rejoin)
        self._note()

    def on_message(self, message: shim_pb2.CoordinatorMessage) -> None:
        """Take one message; nothing here waits, so the stream is read without pause."""
        kind = message.WhichOneof("body")
        if kind == "order":
            self._on_order(message.order)
        elif kind == "orders":
            for order in message.orders.orders:
                self._on_order(order)
        elif kind == "question":
            self._on_question(self._answer_question(message.question))
        elif kind == "log":
            self._on_question(self._answer_log(message.log))
        elif kind == "task":
            self._on_task(message.task)
        elif kind is not None:
            self._on_word(kind, message)

    def _on_word(self, kind: str, message: shim_pb2.CoordinatorMessage) -> None:
        """What a leader says about us or our workers without wanting an answer."""
        if kind == "fenced":
            self._spawn(self._on_fenced(message.fenced))
        elif kind == "admitted":
            self._on_admitted(message.admitted)
        elif kind == "waiting":
            self._on_waiting(message.waiting)
        elif kind == "stay" and self._heeds(message.stay.epoch, "word"):
            self._stays[message.stay.job] = time.monotonic() + message.stay.for_ms / 1000
        elif kind == "refused":
            self.notice_refused(message.refused)
        elif kind == "meeting" and self._heeds(message.meeting.epoch, "meeting"):
            self.drivers.endpoint.meetings.hear(message.meeting)
        elif kind == "welcome":
            self._on_new_leader(message.welcome)

    def _on_new_leader(self, welcome: shim_pb2.Welcome) -> None:
        """A further Welcome on the stream we have; raises Fenced for a leader of the past.

        The leader knows nothing of us, so Hello is the first thing that it hears.
        """
        self.on_welcome(welcome)
        self.send(self.hello())

    def _on_order(self, message: shim_pb2.Order) -> None:
        try:
            self._fence.admit(message.epoch)
            order = wire.order_of(message)
            lane = self._lane(order.job, order.worker)
        except AllstopError as error:
            error.at(job=message.job, worker=message.worker, node=self._probe.current().node)
            log.warning("order refused", job=message.job, worker=message.worker, why=str(error))
            self.send(wire.refusal_message(message, error))
            return
        lane.submit(order)

    def _on_task(self, task: shim_pb2.StoreTask) -> None:
        try:
            self._fence.admit(task.epoch)
        except AllstopError as error:
            self._store_tasks.refuse(task, error)
            return
        self._store_tasks.take(task)

    def _heeds(self, epoch: int, what: str) -> bool:
        """Whether that leader is obeyed; else the log says that its message is ignored, and why."""
        try:
            self._fence.admit(epoch)
        except AllstopError as error:
            log.warning(f"{what} ignored", why=str(error))
            return False
        return True

    def _on_admitted(self, admitted: shim_pb2.Admitted) -> None:
        """The worker is the job's in this incarnation; a coordinator of the past is ignored."""
        if not self._heeds(admitted.epoch, "admission"):
            return
        lane = self._lanes.get((admitted.job, admitted.worker))
        if lane is not None and lane.worker.state:
            lane.worker.admit(admitted.incarnation)
            log.info("taken in", worker=lane.worker.name, incarnation=admitted.incarnation)
            self._note()

    def _on_waiting(self, waiting: shim_pb2.Waiting) -> None:
        """Why a worker that was launched is not the job's yet."""
        if self._heeds(waiting.epoch, "word"):
            worker = f"{waiting.job}/{waiting.worker}"
            log.info("not taken in yet", worker=worker, why=waiting.reason)

    async def _on_fenced(self, fenced: shim_pb2.Fenced) -> None:
        """Kill the workers that are not the job any more; the stream is kept."""
        if not self._heeds(fenced.epoch, "fence"):
            return
        for named in fenced.workers:
            lane = self._lanes.get((named.job, named.worker))
            if lane is None or not lane.worker.state:
                continue
            log.warning("worker is fenced", worker=lane.worker.name, why=fenced.reason)
            try:
                await lane.alone(partial(_fence_out, fenced.reason), epoch=fenced.epoch)
            except Fenced as error:
                log.warning("fence of the past ignored", why=str(error))
                return
            except AllstopError as error:
                lane.worker.state = "faulted"
                log.error("fenced worker cannot be killed", why=str(error))
            self._note()

    def _on_question(self, answering: Coroutine[None, None, None]) -> None:
        if len(self._tasks) < QUESTIONS_MAX:
            self._spawn(answering)
        else:
            answering.close()

    async def _answer_question(self, question: shim_pb2.Question) -> None:
        facts = await self._probe.answer(wire.files_asked(question))
        self.send(wire.answer_message(question.question, facts))

    async def _answer_log(self, question: shim_pb2.LogQuestion) -> None:
        places = wire.places_asked(question)
        found = [await self._read_log(question.job, place) for place in places]
        parts = tuple(part for parts in found for part in parts)
        self.send(wire.log_answer_message(question.question, parts))

    async def _read_log(self, job: str, place: LogPlace) -> tuple[LogPart, ...]:
        lane = self._lanes.get((job, place.worker))
        if lane is None or not lane.worker.state:
            where = Where(job=job, worker=place.worker, node=self._probe.current().node)
            gone = NotFound("the worker is not on this node any more", where=where)
            return (LogPart(place.worker, place.source, place.file, failure=failure_of(gone)),)
        return await asyncio.to_thread(logs.read, lane.worker, place)

    def _spawn(self, work: Coroutine[None, None, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    # -- what goes out -----------------------------------------------------------------------------

    def _answer(self, order: Order, outcome: Outcome) -> None:
        self.send(wire.result_message(order, outcome))
        self._note()

    def _progress(self, order: Order, done_bytes: int, total_bytes: int) -> None:
        """Called from threads, and more often than anybody wants to know."""
        key, now = (order.job, order.worker, order.action), time.monotonic()
        last = self._progressed.get(key, 0.0)
        if now - last < PROGRESS_INTERVAL_S and done_bytes < total_bytes:
            return
        self._progressed = {key: now} if len(self._progressed) > 64 else self._progressed
        self._progressed[key] = now
        message = wire.progress_message(order, done_bytes, total_bytes)
        self._loop.call_soon_threadsafe(self.send, message)

    async def reporting(self) -> None:
        """Report on every change and at least every interval, for as long as the shim lives."""
        while True:
            self._changed.clear()
            try:
                await self.report()
            except Exception:  # a report that fails must not take the worker with it
                log.exception("cannot report")
            try:
                async with asyncio.timeout(self._interval_s):
                    await self._changed.wait()
            except TimeoutError:
                continue

    async def report(self) -> None:
        """Look at every worker and say how it is; facts go along when they changed."""
        await asyncio.gather(*(self._look(lane) for lane in self.lanes()))
        facts, states = self._probe.refresh(), self.states()
        if not any(state.action for state in states):
            self._probe.look_at_gpus()
        changed = facts if facts != self._told else None
        now = time.monotonic()
        silent_s = now - self._told_at
        beat = silent_s >= HEARTBEAT_INTERVALS * self._interval_s
        if is_news(states, self._told_states, silent_s) or (changed is not None and beat):
            message = wire.report_message(states, changed)
        elif beat:
            message = shim_pb2.ShimMessage()
        else:
            return
        if self.send(message):
            self._told, self._told_states, self._told_at = facts, states, now

    async def _look(self, lane: Lane) -> None:
        await self._looker.look(lane.worker, busy=lane.busy)
        if lane.worker.alive and not lane.busy and not lane.worker.action:
            await asyncio.to_thread(logs.give_back, lane.worker.directory / LOG)

    def start(self, send: Send) -> None:
        """Take what sends, and the loop that threads report to; call it inside the loop."""
        self._loop = asyncio.get_running_loop()
        self.send = self.drivers.endpoint.meetings.send = self._store_tasks.send = send

    async def stop(self) -> None:
        """Cut short what runs and end every worker here; for the shim's end."""
        for lane in tuple(self._lanes.values()):
            await lane.abandon()
            if lane.worker.state:
                try:
                    await lane.alone(put_out)
                except AllstopError as error:
                    log.error("worker is left behind", worker=lane.worker.name, why=str(error))
        await asyncio.to_thread(self.drivers.staging.drop_kept)
        self.drivers.endpoint.close()
        await self._store_tasks.stop()
        for task in tuple(self._tasks):
            task.cancel()


async def _fence_out(reason: str, worker: Worker, deadline: Deadline) -> None:
    worker.fenced = reason
    await put_out(worker, deadline)
