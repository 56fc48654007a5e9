"""What the page shows, kept up to date for as long as somebody looks, once for all who look."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator
from contextlib import aclosing
from dataclasses import asdict, dataclass, field
from typing import Any

import structlog

from coordinator.api.board import Board
from coordinator.api.client import OperatorClient
from coordinator.api.values import ActionEvent
from coordinator.core.errors import AllstopError, LinkError
from coordinator.core.view import JobView, NodeView

log = structlog.get_logger(__name__)

IDLE_S = 1.0  # between two looks while nothing runs
BUSY_S = 0.25  # and while something does
SIGN_S = 15.0  # of life, for proxies that end silent connections
VIEWERS_MAX = 64
ROOM_BYTES = 100_000_000  # by which room in memory and staging is told


@dataclass
class Live:
    """One attempt or restore that runs now, or ended last."""

    action: str
    kind: str  # checkpoint, restore
    board: Board = field(default_factory=Board)
    newest: ActionEvent | None = None
    heard_s: float = field(default_factory=time.monotonic)

    def hear(self, event: ActionEvent) -> None:
        """Take in what happened."""
        self.board.update(event)
        self.newest, self.heard_s = event, time.monotonic()

    def told(self) -> dict[str, Any]:
        """For the page: between two events time goes on, for the action and for who is awaited."""
        event = self.newest
        over = event is None or event.last
        since_ms = 0 if over else round((time.monotonic() - self.heard_s) * 1000)
        awaited = event.awaited if event else ()
        return {
            "action": self.action,
            "kind": self.kind,
            "elapsed_ms": event.elapsed_ms + since_ms if event else 0,
            "state": event.state if event else "",
            "reason": event.reason if event else "",
            "last": bool(event and event.last),
            "rows": [{**asdict(row), "share": row.share} for row in self.board.rows],
            "awaited": [{**asdict(e), "age_ms": e.age_ms + since_ms} for e in awaited],
            "unnamed": event.unnamed if event else 0,
        }


class Feed:
    """Asks the coordinators while there are viewers; everything here runs on one loop."""

    def __init__(self, client: OperatorClient) -> None:
        """`client` stays the caller's."""
        self._client = client
        self._viewers = 0
        self._asking: asyncio.Task[None] | None = None
        self._following: dict[str, asyncio.Task[None]] = {}
        self._live: dict[str, Live] = {}  # by job
        self._state: dict[str, Any] = {"jobs": [], "nodes": [], "live": {}, "problem": ""}
        self._version = 0
        self._changed = asyncio.Event()

    async def states(self) -> AsyncIterator[dict[str, Any] | None]:
        """The state, each time it has changed; None now and then as a sign of life.

        Raises LinkError when too many look already.
        """
        if self._viewers >= VIEWERS_MAX:
            raise LinkError(f"{VIEWERS_MAX} viewers are there already", advice="try later")
        self._viewers += 1
        if self._asking is None or self._asking.done():
            self._asking = asyncio.create_task(self._ask(), name="page feed")
        seen = -1
        try:
            while True:
                if seen != self._version:
                    seen = self._version
                    yield self._state
                    continue
                try:
                    async with asyncio.timeout(SIGN_S):
                        await self._changed.wait()
                except TimeoutError:
                    yield None
        finally:
            self._viewers -= 1

    async def look(self) -> dict[str, Any]:
        """How things are, asked for now; raises what the client raises."""
        jobs, nodes = await asyncio.gather(self._client.jobs(), self._client.nodes())
        self._publish(jobs, nodes, "")
        return self._state

    async def close(self) -> None:
        """End what runs."""
        tasks = [*self._following.values(), *([self._asking] if self._asking else [])]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _ask(self) -> None:
        while self._viewers:
            problem = ""
            jobs: tuple[JobView, ...] = ()
            nodes: tuple[NodeView, ...] = ()
            try:
                jobs, nodes = await asyncio.gather(self._client.jobs(), self._client.nodes())
            except AllstopError as error:
                problem = error.what
            except Exception as error:  # the page goes on; a person looks at it
                log.exception("the page cannot be kept up to date")
                problem = f"this page met a defect: {error!r}"
            if not problem:
                self._follow(jobs)
            self._publish(jobs, nodes, problem)
            await asyncio.sleep(BUSY_S if self._following else IDLE_S)

    def _follow(self, jobs: tuple[JobView, ...]) -> None:
        """Watch what runs, each action once."""
        for view in jobs:
            if view.action and view.action not in self._following:
                kind = "restore" if view.state == "restoring" else "checkpoint"
                live = self._live[view.job.job] = Live(view.action, kind)
                task = asyncio.create_task(self._watch(live), name=f"page watches {view.action}")
                self._following[view.action] = task

    async def _watch(self, live: Live) -> None:
        try:
            async with aclosing(self._client.watch(live.action)) as events:
                async for event in events:
                    live.hear(event)
                    self._tell()
        except AllstopError as error:  # its own failure is in the last event
            if live.newest is None or not live.newest.last:
                log.info("the page lost sight of an action", action=live.action, why=error.what)
        finally:
            self._following.pop(live.action, None)
            self._tell()

    def _publish(
        self, jobs: tuple[JobView, ...], nodes: tuple[NodeView, ...], problem: str
    ) -> None:
        if problem:
            state = {**self._state, "problem": problem}
        else:
            known = {view.job.job for view in jobs}
            self._live = {job: live for job, live in self._live.items() if job in known}
            state = {
                "jobs": [job_told(view) for view in jobs],
                "nodes": [node_told(view) for view in nodes],
                "live": {},
                "problem": "",
            }
        state["live"] = {job: live.told() for job, live in self._live.items()}
        if state != self._state:
            self._state = state
            self._tell_all()

    def _tell(self) -> None:
        """Something of what runs has changed."""
        self._state = {
            **self._state,
            "live": {job: live.told() for job, live in self._live.items()},
        }
        self._tell_all()

    def _tell_all(self) -> None:
        self._version += 1
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()


def job_told(view: JobView) -> dict[str, Any]:
    """One job for the page: its ranks as [rank, boundary, parked]."""
    return {
        "job": view.job.job,
        "state": view.state,
        "step": view.step,
        "incarnation": view.job.incarnation,
        "action": view.action,
        "latest": view.job.latest,
        "latest_age_s": round(time.time() - view.latest_unix_s) if view.latest_unix_s else None,
        "waiting": view.waiting,
        "problems": list(view.problems),
        "workers": [
            {
                "worker": worker.worker,
                "node": node,
                "state": worker.state,
                "ranks": [[each.rank, each.boundary, each.parked] for each in worker.ranks],
                "findings": [each.text for each in worker.findings],
            }
            for worker, node in zip(view.workers, view.nodes, strict=False)
        ],
    }


def node_told(view: NodeView) -> dict[str, Any]:
    """One node for the page."""
    facts = asdict(view.facts)
    for name in ("cpu_flags", "files"):
        facts.pop(name)
    for name in ("memory_free_bytes", "staging_free_bytes"):  # not each byte is news
        facts[name] -= facts[name] % ROOM_BYTES
    return {
        **facts,
        "state": view.state,
        "reason": view.reason,
        "drain": drain_told(view),
        "workers": [
            {"job": each.job, "worker": each.worker, "state": each.state} for each in view.workers
        ],
    }


def drain_told(view: NodeView) -> dict[str, str] | None:
    """How the emptying of a node stands; None: it takes workers, and nothing is to be said."""
    if view.drain is None:
        return None
    told = view.drain
    return {"state": told.state.lower(), "why": told.why, "reason": told.reason}


@contextlib.asynccontextmanager
async def feeding(client: OperatorClient) -> AsyncIterator[Feed]:
    """A feed that ends with the block."""
    feed = Feed(client)
    try:
        yield feed
    finally:
        await feed.close()
