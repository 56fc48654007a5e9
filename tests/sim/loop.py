"""An event loop with virtual time, and simulated processes that can be frozen and killed.

Whatever is scheduled belongs to the process whose code scheduled it. Within a process callbacks
run in order, as in any asyncio program; between processes the seed decides. A frozen process runs
nothing; when it goes on, all that was due runs late. Of a killed one nothing runs any more, and
nothing of it is collected either: a `finally` of a dead process must not act.
"""

from __future__ import annotations

import asyncio
import heapq
import sys
from collections import deque
from collections.abc import Callable, Coroutine, Generator
from contextlib import contextmanager
from contextvars import Context, ContextVar, copy_context
from itertools import count
from random import Random
from typing import Any

RUNNING, FROZEN, DEAD = "running", "frozen", "dead"
STEPS_MAX = 3_000_000  # of one run: it hangs, in virtual time or without it
TASKS_KEPT = 512

PROCESS: ContextVar[Process | None] = ContextVar("PROCESS", default=None)


class Process:
    """One operating-system process: its callbacks, its clock, and what the kernel ends with it."""

    def __init__(self, loop: SimLoop, name: str, host: str, *, rate: float = 1.0) -> None:
        """`rate` is how fast its monotonic clock goes; every process's clock starts elsewhere."""
        self.loop, self.name, self.host, self.rate = loop, name, host, rate
        self.offset = loop.rng.uniform(0.0, 1e5)
        self.state = RUNNING
        self.ready: deque[asyncio.Handle] = deque()
        self.queued = False
        self.tasks: list[asyncio.Task[Any]] = []
        self.signals: dict[int, Callable[[], object]] = {}
        self.at_death: list[Callable[[], object]] = []
        self.frozen_s = 0.0  # in all, up to the last time it went on
        self.frozen_at = 0.0
        self.context = copy_context()
        self.context.run(PROCESS.set, self)

    def __repr__(self) -> str:
        return f"<{self.name}, {self.state}>"

    def clock(self) -> float:
        """Its own monotonic seconds."""
        return self.offset + self.rate * self.loop.now

    def spawn(self, work: Coroutine[Any, Any, Any], name: str = "") -> asyncio.Task[Any]:
        """Run a coroutine in this process; an exception that leaves it is a defect."""
        task = self.loop.create_task(work, name=name, context=self.context.copy())
        task.add_done_callback(self._over)
        return task

    def _over(self, task: asyncio.Task[Any]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            told = {"message": f"{task.get_name()} ended", "exception": error}
            self.loop.call_exception_handler(told)

    def run(self, call: Callable[..., object], *args: object) -> None:
        """Run a function in this process, soon."""
        self.loop.call_soon(call, *args, context=self.context.copy())

    def freeze(self) -> None:
        """SIGSTOP."""
        if self.state == RUNNING:
            self.state, self.frozen_at = FROZEN, self.loop.now

    def go_on(self) -> None:
        """SIGCONT."""
        if self.state == FROZEN:
            self.state = RUNNING
            self.frozen_s += self.loop.now - self.frozen_at
            if self.loop.rng.random() < 0.5:
                self._hear_first()
            self.loop.wake(self)

    def _hear_first(self) -> None:
        """What has arrived meanwhile is handled before the timers that are due, as with epoll."""
        due, self.ready = self.ready, deque()
        for handle in due:
            arrival = getattr(handle._callback, "arrival", False)  # type: ignore[attr-defined]
            if arrival:
                self.ready.append(handle)
            else:
                self.loop.put_off(handle, self.loop.rng.uniform(0.001, 0.02))

    def kill(self) -> None:
        """SIGKILL: nothing of it runs any more, and the kernel closes what it had open."""
        if self.state == DEAD:
            return
        self.state = DEAD
        self.ready.clear()
        for call in self.at_death:
            call()

    def signal(self, number: int) -> None:
        """A signal that it has a handler for."""
        if number in self.signals and self.state != DEAD:
            self.run(self.signals[number])


class SimLoop(asyncio.BaseEventLoop):
    """Runs callbacks of many processes one after another; time jumps to the next timer."""

    def __init__(self, rng: Random) -> None:
        """`rng` decides everything that real schedulers leave open."""
        self.rng = rng
        self.now = 0.0
        self.steps = 0
        self.stopped = ""  # why the run ends at once
        self._timers: list[tuple[float, int, asyncio.Handle]] = []
        self._numbers = count()
        self._active: list[Process] = []
        self.outside = Process(self, "outside", "")
        self.outside.offset = 0.0
        super().__init__()

    # -- what asyncio asks ------------------------------------------------------------------------

    def time(self) -> float:
        process = PROCESS.get()
        return self.now if process is None else process.clock()

    def is_running(self) -> bool:
        return True

    def get_debug(self) -> bool:
        return False

    def call_soon(
        self, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> asyncio.Handle:
        if context is None:
            context = copy_context()
        process = context.get(PROCESS) or self.outside
        handle = asyncio.Handle(callback, args, self, context)
        if process.state != DEAD:
            process.ready.append(handle)
            if not process.queued and process.state == RUNNING:
                process.queued = True
                self._active.append(process)
        return handle

    def call_soon_threadsafe(
        self, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> asyncio.Handle:
        return self.call_soon(callback, *args, context=context)

    def call_later(
        self,
        delay: float,
        callback: Callable[..., object],
        *args: Any,
        context: Context | None = None,
    ) -> asyncio.TimerHandle:
        return self.call_at(self.time() + delay, callback, *args, context=context)

    def call_at(
        self,
        when: float,
        callback: Callable[..., object],
        *args: Any,
        context: Context | None = None,
    ) -> asyncio.TimerHandle:
        """`when` is told by the clock of the process that asks."""
        process = PROCESS.get()
        if process is not None:
            when = (when - process.offset) / process.rate
        return self.at(when, callback, *args, context=context)

    def at(
        self,
        when: float,
        callback: Callable[..., object],
        *args: Any,
        context: Context | None = None,
    ) -> asyncio.TimerHandle:
        """The same, `when` told by the one true clock."""
        handle = asyncio.TimerHandle(when, callback, args, self, context)
        heapq.heappush(self._timers, (when, next(self._numbers), handle))
        return handle

    def later(self, seconds: float, call: Callable[..., object], *args: Any) -> None:
        """In so many true seconds, outside of all processes: whoever lives then."""
        self.at(self.now + seconds, call, *args, context=self.outside.context)

    def put_off(self, handle: asyncio.Handle, seconds: float) -> None:
        """Let something that is due wait a little longer."""
        heapq.heappush(self._timers, (self.now + seconds, next(self._numbers), handle))

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        """Cancelled ones stay in the heap until their time."""

    def create_task(
        self,
        coro: Any,
        *,
        name: str | None = None,
        context: Context | None = None,
    ) -> asyncio.Task[Any]:
        task: asyncio.Task[Any] = asyncio.Task(coro, loop=self, name=name, context=context)
        found = PROCESS.get() if context is None else context.get(PROCESS)
        process = found or self.outside
        process.tasks.append(task)
        if len(process.tasks) > TASKS_KEPT:
            process.tasks = [each for each in process.tasks if not each.done()]
        return task

    def run_in_executor(self, executor: Any, func: Any, *args: Any) -> asyncio.Future[Any]:  # type: ignore[override]
        """Threads are not simulated: the work is done in one go, at once or a moment later."""
        future = self.create_future()

        def work() -> None:
            try:
                result = func(*args)
            except BaseException as error:
                if not future.done():
                    future.set_exception(error)
            else:
                if not future.done():
                    future.set_result(result)

        if self.rng.random() < 0.1:
            self.call_later(self.rng.uniform(0.0005, 0.02), work)
        else:
            self.call_soon(work)
        return future

    def add_signal_handler(self, sig: int, callback: Callable[..., object], *args: Any) -> None:
        process = PROCESS.get() or self.outside
        process.signals[sig] = lambda: callback(*args)

    def remove_signal_handler(self, sig: int) -> bool:
        process = PROCESS.get() or self.outside
        return process.signals.pop(sig, None) is not None

    # -- the scheduler ----------------------------------------------------------------------------

    def wake(self, process: Process) -> None:
        """It goes on: what waits in it may run."""
        if process.ready and not process.queued:
            process.queued = True
            self._active.append(process)

    def _step(self) -> None:
        """Run some callbacks of one process, or let time pass up to the next timer."""
        if not self._active:
            if not self._timers:
                self.stopped = "nothing is scheduled any more"
                return
            self.now = max(self.now, self._timers[0][0])
        while self._timers and self._timers[0][0] <= self.now:
            handle = heapq.heappop(self._timers)[2]
            if not handle._cancelled:
                self._due(handle)
        if not self._active:
            return
        at = self.rng.randrange(len(self._active)) if len(self._active) > 1 else 0
        process = self._active[at]
        waiting = len(process.ready)
        few = waiting if waiting < 2 or self.rng.random() < 0.5 else self.rng.randint(1, waiting)
        for _ in range(few):
            if process.state != RUNNING or not process.ready:
                break
            handle = process.ready.popleft()
            self.steps += 1
            if not handle._cancelled:
                handle._run()
        if process.state != RUNNING or not process.ready:
            process.queued = False
            self._active.remove(process)

    def _due(self, handle: asyncio.Handle) -> None:
        process = handle._context.get(PROCESS) or self.outside  # type: ignore[attr-defined]
        if process.state == DEAD:
            return
        process.ready.append(handle)
        if process.state == RUNNING:
            self.wake(process)

    @contextmanager
    def _in_charge(self) -> Generator[None]:
        hooks = sys.get_asyncgen_hooks()
        sys.set_asyncgen_hooks(
            firstiter=self._asyncgen_firstiter_hook, finalizer=self._asyncgen_finalizer_hook
        )
        asyncio._set_running_loop(self)
        try:
            yield
        finally:
            asyncio._set_running_loop(None)
            sys.set_asyncgen_hooks(*hooks)

    def run(self, work: Coroutine[Any, Any, Any]) -> None:
        """Run until this coroutine, which belongs to no process, ends, or until `stopped`."""
        with self._in_charge():
            task = self.create_task(work, context=self.outside.context)
            while not task.done() and not self.stopped:
                self._step()
                if self.steps > STEPS_MAX:
                    self.stopped = f"no end after {STEPS_MAX} steps"
            if task.done() and not task.cancelled() and (error := task.exception()):
                raise error
