"""Writes that nothing depends on: facts of nodes, timelines, and what the newest replaces.

They are tried once. What is lost comes again with the next change, or is advice for people alone.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine
from typing import TypeVar

import structlog

from coordinator.core import commands
from coordinator.core.errors import AllstopError, Fenced, StoreError
from coordinator.core.failures import listed
from coordinator.core.job_policy import JobHistory, JobRecovery
from coordinator.core.model import NodeFacts
from coordinator.core.timelines import Timeline
from coordinator.store.port import Store

log = structlog.get_logger(__name__)

TIMELINES_MAX = 64  # that wait for the store; of more the oldest are not kept

_Answer = TypeVar("_Answer")


class QuietWriter:
    """Lanes by name, each a task that lives while it has work; errors are logged, not told."""

    def __init__(
        self, store: Store, stop: Callable[[AllstopError], None], write_deadline_s: float
    ) -> None:
        """`stop` is called when the store says that another leads."""
        self._store = store
        self._stop = stop
        self._write_deadline_s = write_deadline_s
        self._nodes: dict[str, NodeFacts | None] = {}  # None: to be forgotten
        self._newest: dict[tuple[type, str], JobHistory | JobRecovery] = {}  # by kind and job
        self._timelines: deque[Timeline] = deque(maxlen=TIMELINES_MAX)
        self._tasks: dict[str, asyncio.Task[None]] = {}

    def publish(self, facts: NodeFacts) -> None:
        """Make a node's facts readable in the store; nothing depends on it, the newest wins."""
        self._nodes[facts.node] = facts
        self._start("", self._write_nodes)

    def forget(self, node: str) -> None:
        """Take a node's facts back."""
        self._nodes[node] = None
        self._start("", self._write_nodes)

    def keep(self, timeline: Timeline) -> None:
        """Make it readable what an action that has ended spent its time on; once, if at all."""
        self._timelines.append(timeline)
        self._start("timelines ", self._write_timelines)

    def keep_newest(self, command: commands.KeepHistory | commands.KeepRecovery) -> None:
        """Write what the core keeps of a job; of several that wait only the newest is written."""
        self._newest[type(command), command.record.job] = command.record
        self._start("newest ", self._write_newest)

    def _start(self, lane: str, run: Callable[[], Coroutine[None, None, None]]) -> None:
        if lane not in self._tasks:
            self._tasks[lane] = asyncio.create_task(run(), name=f"writes {lane}")

    async def _write_nodes(self) -> None:
        try:
            while self._nodes:
                changed, self._nodes = self._nodes, {}
                facts = [each for each in changed.values() if each is not None]
                gone = [node for node, each in changed.items() if each is None]
                named = listed(sorted(changed))
                await self._quietly(self._store.put_nodes(facts, gone), f"facts of {named}")
        finally:
            del self._tasks[""]

    async def _write_timelines(self) -> None:
        try:
            while self._timelines:
                timeline = self._timelines.popleft()
                what = f"the timeline of {timeline.action}"
                await self._quietly(self._store.put_timeline(timeline), what)
        finally:
            del self._tasks["timelines "]

    async def _write_newest(self) -> None:
        try:
            while self._newest:
                key = next(iter(self._newest))
                record = self._newest.pop(key)
                what = f"{type(record).__name__} of {record.job}"
                if isinstance(record, JobHistory):
                    await self._quietly(self._store.put_history(record), what)
                else:
                    await self._quietly(self._store.put_recovery(record), what)
        finally:
            del self._tasks["newest "]

    async def _bounded(self, writing: Awaitable[_Answer], what: str) -> _Answer:
        try:
            async with asyncio.timeout(self._write_deadline_s):
                return await writing
        except TimeoutError:
            raise StoreError(
                f"the store did not answer within {self._write_deadline_s:g} s: {what}",
                definite=False,
            ) from None

    async def _quietly(self, writing: Awaitable[None], what: str) -> None:
        """Write what nothing depends on."""
        try:
            await self._bounded(writing, what)
        except Fenced as error:
            self._stop(error)
        except AllstopError as error:
            log.warning("not in the store", what=what, error=str(error))
