"""One worker's lane: its orders one after another, each of them once, under a dead-man timer."""

from __future__ import annotations

import asyncio
import traceback
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace

import structlog

from coordinator.core.errors import (
    AllstopError,
    AttemptFailed,
    BadRequest,
    BugError,
    DeadlinePassed,
    Fenced,
    NotFound,
)
from coordinator.core.failures import failure_of
from coordinator.core.model import Finding, Phase, Severity
from worker_shim.agent import dumping, gpus, holding, persisting, restoring, undoing
from worker_shim.agent.deadman import DeadManTimer
from worker_shim.agent.order import Deadline, Key, Order, Outcome
from worker_shim.agent.stopping import stop
from worker_shim.agent.worker import Worker

log = structlog.get_logger(__name__)

KEPT_MAX = 1024  # outcomes kept for orders that come again
OVERTIME_S = 10.0  # a step ends by itself before this, since all it calls is bounded
DEAD_MAN_S = 60.0  # how long the dead-man timer's own undo may take
DEVICE_BACK_S = 60.0  # and for each process whose device memory has to be put back
AGAIN_S = 5.0  # from an undo of the dead-man timer that failed to the next

Step = Callable[[Worker, Order, Deadline], Awaitable[Outcome]]
Progress = Callable[[Order, int, int], None]
Answer = Callable[[Order, Outcome], None]
Require = Callable[[int], None]

STEPS: dict[Phase, Step] = {
    Phase.HOLD: holding.hold,
    Phase.PARK: holding.park,
    Phase.GPU_LOCK: gpus.lock,
    Phase.GPU_SAVE: gpus.save,
    Phase.DUMP: dumping.dump,
    Phase.RESUME: undoing.resume,
    Phase.STOP: stop,
    Phase.UNDO: undoing.undo,
    Phase.CLEAR: restoring.clear,
    Phase.RESTORE: restoring.restore,
    Phase.GPU_RESTORE: gpus.restore,
    Phase.GPU_UNLOCK: gpus.unlock,
    Phase.OPEN: restoring.open_network,
    Phase.RELEASE: restoring.release,
}
STEPS_WITH_PROGRESS = {Phase.PERSIST: persisting.persist, Phase.FETCH: restoring.fetch}

# these copy and touch no process of the worker, so they run beside the others; whoever removes what
# they made stops them first (`Worker.stop_copies`), and only after the worker runs again
BACKGROUND = frozenset({Phase.PERSIST, Phase.FETCH})
# these wait while the worker is held, and are cut short by an undo; criu is never killed while it
# holds a tree
INTERRUPTIBLE = frozenset({Phase.PARK})
# after these the worker is not held any more
LETS_GO = frozenset({Phase.RESUME, Phase.STOP, Phase.UNDO, Phase.RELEASE})
# a restore takes the worker from whatever held it
TAKES_OVER = frozenset(
    {Phase.CLEAR, Phase.RESTORE, Phase.GPU_RESTORE, Phase.GPU_UNLOCK, Phase.OPEN}
)
# these are wanted however long they waited in the lane: their time begins with their turn
NEVER_LATE = frozenset({Phase.UNDO, Phase.STOP})
# these make sense for a worker that is not on this node
WITHOUT_WORKER = frozenset({Phase.FETCH, Phase.CLEAR, Phase.UNDO})


@dataclass
class _Entry:
    """One order and what became of it."""

    order: Order  # the newest copy: a new leader may ask again under its own epoch
    outcome: Outcome | None = None
    task: asyncio.Task[None] | None = None


class Lane:
    """Carries out the orders of one worker; `answer` is called once for each copy of an order."""

    def __init__(
        self,
        worker: Worker,
        answer: Answer,
        progress: Progress,
        require: Require,
        finished: Answer = lambda order, outcome: None,
    ) -> None:
        """The lane owns the worker's dead-man timer; `require` raises Fenced for an old epoch.

        `finished` hears of each order once, when it has ended.
        """
        self.worker = worker
        self.timer = DeadManTimer(self._time_over)
        self._answer = answer
        self._progress = progress
        self._require = require
        self._finished = finished
        self._entries: OrderedDict[Key, _Entry] = OrderedDict()
        self._foreground = asyncio.Lock()
        self._background = asyncio.Lock()
        self._stuck = ""  # the action that the dead-man timer could not undo yet

    @property
    def busy(self) -> bool:
        """Whether an order is being carried out or the worker is held."""
        running = any(entry.outcome is None for entry in self._entries.values())
        return running or self.timer.armed

    @property
    def held(self) -> bool:
        """Whether an attempt or a restore has the worker, or is about to."""
        worker = self.worker
        return bool(worker.action) or worker.restoration is not None or self.timer.armed

    def submit(self, order: Order) -> None:
        """Take an order whose epoch was admitted: executed at most once, answered later."""
        known = self._entries.get(order.key)
        if known is not None:
            known.order = order
            if known.outcome is not None:
                self._answer(order, self._as_it_stands(order, known.outcome))
            return
        if order.phase is Phase.UNDO:
            self.worker.undone.add(order.action)
        elif order.action not in self.worker.undone and self._may_hold(order):
            self.timer.arm(order.action, order.hold_s)
        entry = self._entries[order.key] = _Entry(order)
        name = f"{order.phase} {order.name} {order.action}"
        entry.task = asyncio.get_running_loop().create_task(self._execute(entry), name=name)
        if order.phase in BACKGROUND:
            self.worker.copies(order.action, entry.task)
        self._forget_old()

    def _as_it_stands(self, order: Order, outcome: Outcome) -> Outcome:
        """The stored outcome, unless what was done then has been undone since.

        A new leader that asks again would take images for stored that are gone.
        """
        if outcome.failure is not None or order.phase is Phase.UNDO:
            return outcome
        if order.action not in self.worker.undone:
            return outcome
        return self._failed(order, AttemptFailed(f"{order.action} was undone on this node"))

    async def _execute(self, entry: _Entry) -> None:
        order, deadline = entry.order, Deadline(entry.order.deadline_s)
        try:
            outcome = await self._in_turn(entry, deadline)
        except asyncio.CancelledError:
            outcome = self._failed(
                order, AttemptFailed(f"{order.phase} was interrupted by an undo")
            )
        except AllstopError as error:
            outcome = self._failed(order, error)
        except Exception as error:
            outcome = self._failed(order, _bug(error))
        if order.phase in LETS_GO and outcome.failure is None:
            self.timer.disarm(order.action)
        elif order.phase is Phase.HOLD and outcome.failure is not None:
            self._not_held(order)
        entry.outcome = deadline.told(outcome)
        self.worker.ended.add(order.done)
        if outcome.failure is not None and (order.phase is Phase.UNDO or _not_begun(outcome)):
            self._entries.pop(order.key, None)  # one that comes again is carried out again
        self._log(order, entry.outcome, deadline)
        self._answer(entry.order, entry.outcome)
        self._finished(order, entry.outcome)

    def _may_hold(self, order: Order) -> bool:
        """An action that is going to be refused must not touch the timer of the one that holds."""
        return order.phase in TAKES_OVER or self.worker.action in ("", order.action)

    async def _in_turn(self, entry: _Entry, deadline: Deadline) -> Outcome:
        order = entry.order
        if order.phase is Phase.UNDO:
            await self._interrupt(order.action)
        lane = self._background if order.phase in BACKGROUND else self._foreground
        async with lane:
            # A new leader may have spoken meanwhile, about this order or about anything else.
            self._require(entry.order.epoch)
            self._require_wanted(order)
            self._begin(order, deadline)
            try:
                async with asyncio.timeout(deadline.left_s + OVERTIME_S):
                    return await self._step(order, deadline)
            except TimeoutError:
                raise DeadlinePassed(
                    f"{order.phase} did not end within {order.deadline_s:.1f} s", definite=False
                ) from None

    def _begin(self, order: Order, deadline: Deadline) -> None:
        """It is the order's turn: only now is it known whom the worker belongs to."""
        if order.phase in NEVER_LATE:
            deadline.begin()
            return
        if deadline.passed:
            raise DeadlinePassed(
                f"{order.phase} waited behind another order for its whole {order.deadline_s:.1f} s",
                definite=True,
            )
        left_s = order.hold_s - deadline.took_ms / 1000  # a hold is counted from receipt
        if self._may_hold(order) and left_s > self.timer.left_for_s(order.action):
            self.timer.arm(order.action, left_s)

    def _step(self, order: Order, deadline: Deadline) -> Awaitable[Outcome]:
        worker = self.worker
        if not worker.state and order.phase not in WITHOUT_WORKER and worker.restoration is None:
            raise NotFound("there is no such worker on this node")
        if order.phase in STEPS_WITH_PROGRESS:
            return STEPS_WITH_PROGRESS[order.phase](worker, order, deadline, self._progress)
        if order.phase not in STEPS:
            raise BadRequest(f"a shim cannot be ordered to {order.phase}")
        return STEPS[order.phase](worker, order, deadline)

    def _require_wanted(self, order: Order) -> None:
        wanted = (Phase.UNDO, Phase.STOP)  # STOP follows a commit, whatever was let go before
        if order.action in self.worker.undone and order.phase not in wanted:
            raise AttemptFailed(f"{order.action} was undone on this node")

    async def _interrupt(self, action: str) -> None:
        """Cut short what waits for this action, and let it answer; no store is waited for."""
        tasks = [
            entry.task
            for entry in self._entries.values()
            if entry.order.action == action
            and entry.order.phase in INTERRUPTIBLE
            and entry.outcome is None
            and entry.task is not None
        ]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks, timeout=DEAD_MAN_S)

    async def _time_over(self, action: str, held_s: float) -> None:
        """The dead-man timer: no word came in time, so the worker is let go without any."""
        try:
            await self._let_go(action, held_s)
        except Exception:  # whatever it was, the worker must not stay held for ever
            log.exception("dead-man timer failed", worker=self.worker.name, action=action)
            self._again_later(action)

    async def _let_go(self, action: str, held_s: float) -> None:
        worker = self.worker
        if worker.rebuilding == action and not worker.action:
            return  # it was let go, and an order waits for its ranks to meet
        marked = action not in worker.undone
        worker.undone.add(action)
        persisting_begun = self._has(action, Phase.PERSIST)
        await self._interrupt(action)
        async with self._foreground:
            if not self._held_by(action):  # the order that let it go was already in the lane
                if marked and not self._has(action, Phase.UNDO):
                    worker.undone.discard(action)
                return
            log.warning("dead-man timer ran out", worker=worker.name, action=action, held_s=held_s)
            deadline = Deadline(DEAD_MAN_S + DEVICE_BACK_S * len(worker.gpus))
            try:
                if worker.restored_by == action:
                    outcome = await undoing.put_away(worker, action, deadline)
                else:
                    outcome = await undoing.put_back(
                        worker, action, deadline, delete=not persisting_begun
                    )
            except Exception as error:
                outcome = self._not_let_go(action, error)
        self._tell(action, held_s, outcome)

    def _not_let_go(self, action: str, error: Exception) -> Outcome:
        known = error if isinstance(error, AllstopError) else _bug(error)
        if self._held_by(action):
            self.worker.state = "faulted"
            self._again_later(action)
        log.error("dead-man timer could not undo", worker=self.worker.name, why=str(known))
        return Outcome(failure=failure_of(known.at(phase=Phase.UNDO.value)))

    def _tell(self, action: str, held_s: float, outcome: Outcome) -> None:
        """Nobody asked, but whoever ordered the hold should know; of many failures, the first."""
        worker, again = self.worker, action == self._stuck
        self._stuck = action if outcome.failure is not None else ""
        if outcome.failure is not None and again:
            return
        text = f"{action} held the worker for {held_s:.1f} s without a word; undone by itself"
        if outcome.failure is not None:
            text = f"{action}: the dead-man timer could not undo: {outcome.failure.what}"
        elif again:
            text = f"{action}: the dead-man timer has undone it at a later try"
        worker.findings = (*worker.findings, Finding(Severity.WARN, "dead_man", text))
        newest = [e.order for e in self._entries.values() if e.order.action == action]
        for order in newest[-1:]:
            self._answer(replace(order, phase=Phase.UNDO), outcome)
        worker.changed(worker)

    def _again_later(self, action: str) -> None:
        """Without end, since the job would stand still for ever, but never faster than this."""
        if not self.timer.armed and self._held_by(action):
            self.timer.arm(action, AGAIN_S)

    def _held_by(self, action: str) -> bool:
        """Whether this action has the worker; a CLEAR that failed half-way has it too."""
        worker = self.worker
        restoring_it = worker.restoration is not None and worker.restoration.action == action
        return worker.action == action or (restoring_it and worker.restored_by == action)

    def _has(self, action: str, phase: Phase) -> bool:
        return (self.worker.job, self.worker.worker, action, phase) in self._entries

    def _not_held(self, order: Order) -> None:
        """A HOLD that failed holds nothing: lower the flag, give the worker back."""
        worker = self.worker
        if worker.action != order.action:
            self.timer.disarm(order.action)
            return
        if worker.page is not None and worker.page.hold:
            worker.page.release()
        worker.end_hold()
        worker.state = "running" if worker.state == "held" else worker.state
        self.timer.disarm(order.action)

    def _failed(self, order: Order, error: AllstopError) -> Outcome:
        node = self.worker.drivers.facts.current().node
        error.at(job=order.job, worker=order.worker, node=node, phase=order.phase.value)
        findings = self.worker.findings if order.phase is Phase.HOLD else ()
        return Outcome(failure=failure_of(error), findings=findings)

    def _forget_old(self) -> None:
        for key in list(self._entries):
            if len(self._entries) <= KEPT_MAX:
                return
            if self._entries[key].outcome is not None:
                del self._entries[key]

    def _log(self, order: Order, outcome: Outcome, deadline: Deadline) -> None:
        fields: dict[str, object] = {"worker": order.name, "action": order.action}
        fields |= {"took_ms": outcome.took_ms, **({"laps": deadline.laps} if deadline.laps else {})}
        if outcome.failure is None:
            log.info(f"{order.phase} done", **fields)
        else:
            log.warning(f"{order.phase} failed", **fields, why=outcome.failure.what)

    async def alone(
        self, work: Callable[[Worker, Deadline], Awaitable[None]], *, epoch: int | None = None
    ) -> None:
        """Do something to the worker that no order asked for, between two orders.

        Raises Fenced, with nothing done, when the coordinator of that epoch was replaced meanwhile.
        """
        for action in {entry.order.action for entry in self._entries.values()}:
            self.worker.undone.add(action)
            await self._interrupt(action)
        async with self._foreground:
            if epoch is not None:
                self._require(epoch)
            self.timer.disarm()
            await work(self.worker, Deadline(DEAD_MAN_S))

    async def between(self, work: Callable[[Worker, Deadline], Awaitable[None]]) -> bool:
        """Do something to the worker that nothing holds; False, with nothing done, if it is held.

        What copies its images goes on.
        """
        async with self._foreground:
            if self.held:
                return False
            await work(self.worker, Deadline(DEAD_MAN_S))
            return True

    async def abandon(self) -> None:
        """At the shim's end: nothing more is begun, what runs is cut short.

        Copies are told to stop too, but not waited for: a store that hangs must not keep a worker.
        """
        self.timer.disarm()
        running = [e for e in self._entries.values() if e.task is not None and not e.task.done()]
        self.worker.tell_copies_to_stop()
        tasks = [e.task for e in running if e.task is not None and e.order.phase not in BACKGROUND]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks, timeout=DEAD_MAN_S)
        await self.timer.settled(deadline_s=DEAD_MAN_S)


def _not_begun(outcome: Outcome) -> bool:
    """Refused in its turn because its leader was replaced: the new one may want the same."""
    return outcome.failure is not None and outcome.failure.kind == Fenced.__name__


def _bug(error: Exception) -> BugError:
    """An exception that no driver should let through."""
    lines = traceback.format_exception(error)[-6:]
    return BugError(
        f"unexpected {type(error).__name__}: {error}",
        advice="this is a mistake in allstop; report it with the lines below",
        definite=False,
        details=tuple(line.rstrip() for line in "".join(lines).splitlines()[-20:]),
    )
