"""What a leader has done with the image store that this node sees, beside the orders of workers.

A task runs beside the lanes, so a store that hangs keeps no worker waiting. One of an id runs once;
its answer is sent on whatever stream stands then, and when it is lost the leader asks anew: each
task can be done again. What a leader of the past has begun goes on: what it judged dead stays dead.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

import structlog
from allstop.v1 import shim_pb2

from coordinator.codec import to_proto
from coordinator.core.errors import AllstopError, BugError, Busy, DriverError
from coordinator.core.failures import failure_of
from worker_shim.images.port import ImageStore, Kept

log = structlog.get_logger(__name__)

RUNNING_MAX = 8  # tasks at once; more are refused, and the leader tries again
PROGRESS_INTERVAL_S = 0.5
OVERTIME_S = 10.0  # the store ends by itself before this, since all it does is bounded
DAMAGE_MAX = 256  # of one worker's images that are told
SHARERS_MAX = 256

Send = Callable[[shim_pb2.ShimMessage], bool]


class StoreTasks:
    """The tasks of one shim."""

    def __init__(self, store: ImageStore, node: Callable[[], str]) -> None:
        """`node` names this one in errors; `send` is set by whoever has a stream."""
        self.send: Send = lambda message: False
        self._store = store
        self._node = node
        self._running: dict[str, asyncio.Task[None]] = {}

    @property
    def running(self) -> int:
        """How many run now."""
        return len(self._running)

    def take(self, task: shim_pb2.StoreTask) -> None:
        """Begin a task, or cancel one; the caller has admitted its epoch. Never waits."""
        known = self._running.get(task.task)
        if task.HasField("cancel"):
            if known is not None:
                known.cancel()
            return
        if known is not None:
            return  # it answers when it has ended
        if len(self._running) >= RUNNING_MAX:
            self.refuse(task, Busy(f"{RUNNING_MAX} tasks run on this node already"))
            return
        made = asyncio.get_running_loop().create_task(self._run(task), name=f"task {task.task}")
        self._running[task.task] = made

    def refuse(self, task: shim_pb2.StoreTask, error: AllstopError) -> None:
        """Answer a task that was not begun."""
        log.warning("task refused", task=task.task, job=task.job, why=str(error))
        self._answer(task, shim_pb2.StoreTaskResult(), error)

    async def stop(self) -> None:
        """End what runs; what it has done stays done, and the leader asks another node."""
        tasks = list(self._running.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _run(self, task: shim_pb2.StoreTask) -> None:
        result = shim_pb2.StoreTaskResult()
        error: AllstopError | None = None
        deadline_s = task.deadline_ms / 1000
        try:
            async with asyncio.timeout(deadline_s + OVERTIME_S):
                await self._do(task, result, deadline_s)
        except AllstopError as told:
            error = told
        except TimeoutError:
            error = DriverError(f"the image store did not end within {deadline_s:g} s")
        except asyncio.CancelledError:
            self._running.pop(task.task, None)
            self._answer(task, result, DriverError("the task was cancelled", definite=False))
            raise
        except OSError as foreign:
            error = DriverError(f"the image store cannot be used: {foreign}", definite=False)
        except Exception as defect:  # whatever it is, the leader must hear of it
            log.exception("a task about the image store failed", task=task.task)
            error = BugError(f"unexpected {type(defect).__name__}: {defect}", definite=False)
        self._running.pop(task.task, None)  # who hears the answer may give the next one
        self._answer(task, result, error)

    async def _do(
        self, task: shim_pb2.StoreTask, result: shim_pb2.StoreTaskResult, deadline_s: float
    ) -> None:
        kind = task.WhichOneof("what")
        log.info("task begun", task=task.task, job=task.job, kind=kind)
        if kind == "list":
            result.attempts.extend(await self._store.actions(task.job, deadline_s=deadline_s))
        elif kind == "collect":
            collected = await self._store.collect(
                task.job,
                tuple(task.collect.dead),
                [Kept(each.place, each.digest) for each in task.collect.keep],
                dry_run=task.collect.dry_run,
                deadline_s=deadline_s,
            )
            result.objects, result.freed_bytes = collected.objects, collected.freed_bytes
        elif kind == "verify":
            await self._verify(task, result, deadline_s)
        else:
            raise DriverError("a task that this shim does not know: it is of an older version")

    async def _verify(
        self, task: shim_pb2.StoreTask, result: shim_pb2.StoreTaskResult, deadline_s: float
    ) -> None:
        images = task.verify.images
        damaged = await self._store.verify(
            images.place,
            images.digest,
            others=[Kept(each.place, each.digest) for each in task.verify.others],
            progress=self._progress(task.task),
            deadline_s=deadline_s,
        )
        result.damage.extend(
            shim_pb2.ImageDamage(
                name=each.name, what=each.what, file=each.file, sharers=each.sharers[:SHARERS_MAX]
            )
            for each in damaged[:DAMAGE_MAX]
        )

    def _progress(self, task: str) -> Callable[[int, int], None]:
        """Tells how far it is, now and then; called from threads."""
        loop = asyncio.get_running_loop()
        told_at = 0.0

        def progress(done_bytes: int, total_bytes: int) -> None:
            nonlocal told_at
            now = time.monotonic()
            if now - told_at < PROGRESS_INTERVAL_S and done_bytes < total_bytes:
                return
            told_at = now
            doing = shim_pb2.StoreTaskProgress(
                task=task, done_bytes=done_bytes, total_bytes=total_bytes
            )
            loop.call_soon_threadsafe(self.send, shim_pb2.ShimMessage(doing=doing))

        return progress

    def _answer(
        self,
        task: shim_pb2.StoreTask,
        result: shim_pb2.StoreTaskResult,
        error: AllstopError | None,
    ) -> None:
        result.epoch, result.task = task.epoch, task.task
        if error is not None:
            error.at(job=task.job, node=self._node())
            log.warning("task failed", task=task.task, job=task.job, why=str(error))
            result.failure.CopyFrom(to_proto(failure_of(error)))
        self.send(shim_pb2.ShimMessage(done=result))
