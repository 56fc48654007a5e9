"""Who watches attempts and restores, and what they are told.

A watcher that does not keep up is dropped with an error of its own; the loop never waits for one.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field

import structlog
from allstop.v1 import operator_pb2, records_pb2, shim_pb2

from coordinator.codec import to_proto
from coordinator.core import commands
from coordinator.core.errors import AllstopError, LinkError, NoLeader
from coordinator.core.failures import error_of

log = structlog.get_logger(__name__)

WATCHER_EVENTS_MAX = 64
WATCHERS_MAX = 1_024
PROGRESS_INTERVAL_S = 0.2


def action_event(announce: commands.Announce) -> operator_pb2.ActionEvent:
    """An announcement of the core as operators get it."""
    event = operator_pb2.ActionEvent(
        action=announce.action,
        elapsed_ms=round(announce.elapsed_s * 1000),
        state=announce.state,
        reason=announce.reason,
        awaited=[
            operator_pb2.Awaited(worker=worker, node=node, ranks=ranks, age_ms=round(age_s * 1000))
            for worker, node, ranks, age_s in announce.awaited
        ],
        unnamed=announce.unnamed,
        expected=announce.expected,
        last=announce.last,
    )
    if announce.failure is not None:
        event.failure.CopyFrom(to_proto(announce.failure, records_pb2.Failure))
    if announce.attempt is not None:
        event.attempt.CopyFrom(to_proto(announce.attempt, records_pb2.AttemptRecord))
    if announce.snapshot is not None:
        event.snapshot.CopyFrom(to_proto(announce.snapshot, records_pb2.Snapshot))
    if announce.restore is not None:
        event.restore.CopyFrom(to_proto(announce.restore, records_pb2.RestoreRecord))
    if announce.cleaned is not None:
        event.cleaned.CopyFrom(to_proto(announce.cleaned, records_pb2.Cleaned))
    return event


@dataclass(frozen=True)
class _News:
    """One announcement, with the bytes done in its state so far; a message only when it is read."""

    announce: commands.Announce
    done_bytes: int = 0
    total_bytes: int = 0

    def message(self) -> operator_pb2.ActionEvent:
        event = action_event(self.announce)
        event.done_bytes, event.total_bytes = self.done_bytes, self.total_bytes
        return event


class Watcher:
    """One operator's view of one action.

    Unread news of one state are one entry, the newest: a thousand answers are not a thousand lines.
    """

    def __init__(self, action: str, limit: int) -> None:
        """News are kept from now on, at most `limit` unread ones."""
        self.action = action
        self._news: deque[_News] = deque()
        self._limit = limit
        self._ended: AllstopError | None = None
        self._done = False
        self._wake = asyncio.Event()

    def put(self, news: _News) -> bool:
        """Queue news; False when this watcher is over, be it for being too slow."""
        if self._ended is not None or self._done:
            return False
        if self._news and not news.announce.last:
            if self._news[-1].announce.state == news.announce.state:
                self._news.pop()
            elif len(self._news) >= self._limit:
                self._news.clear()
                self.end(
                    LinkError(
                        f"this watcher was dropped: it left {self._limit} events unread",
                        advice=f"`allstop show {self.action}` tells how it stands",
                    )
                )
                return False
        self._news.append(news)
        self._done = news.announce.last
        self._wake.set()
        return True

    def end(self, why: AllstopError) -> None:
        """No more news will come, for this reason."""
        if self._ended is None and not self._done:
            self._ended = why
            self._wake.set()

    async def events(self) -> AsyncIterator[operator_pb2.ActionEvent]:
        """Each event up to the last one; raises the reason when it ends before that.

        Waits without a deadline: the action has one, and `end` wakes it.
        """
        while True:
            while self._news:
                news = self._news.popleft()
                yield news.message()
                if news.announce.last:
                    return
            if self._ended is not None:
                raise self._ended
            self._wake.clear()
            await self._wake.wait()


@dataclass
class _Running:
    """What is known of an action that has not ended."""

    announce: commands.Announce
    workers: dict[int, tuple[int, int]] = field(default_factory=dict)  # done, total bytes
    told_at: float = 0.0

    def news(self) -> _News:
        return _News(
            self.announce,
            sum(done for done, _ in self.workers.values()),
            sum(total for _, total in self.workers.values()),
        )


class Watchers:
    """All watchers of one leadership, by action."""

    def __init__(
        self,
        *,
        limit: int = WATCHER_EVENTS_MAX,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`limit` is how many events one watcher may leave unread."""
        self._limit = limit
        self._clock = clock
        self._watchers: dict[str, list[Watcher]] = {}
        self._running: dict[str, _Running] = {}
        self._over: AllstopError | None = None

    def open(self, action: str) -> Watcher:
        """Watch an action from now on.

        Raises LinkError when too many watch already, and NoLeader once the leadership has ended.
        """
        if self._over is not None:
            raise NoLeader(self._over.what, advice=self._over.advice)
        if sum(len(each) for each in self._watchers.values()) >= WATCHERS_MAX:
            raise LinkError(f"{WATCHERS_MAX} watchers are attached already", advice="try later")
        watcher = Watcher(action, self._limit)
        self._watchers.setdefault(action, []).append(watcher)
        return watcher

    def watched(self, action: str) -> bool:
        """Whether anybody watches this action."""
        return action in self._watchers

    def close(self, watcher: Watcher) -> None:
        """The operator went away; the action goes on."""
        left = [each for each in self._watchers.get(watcher.action, ()) if each is not watcher]
        if left:
            self._watchers[watcher.action] = left
        else:
            self._watchers.pop(watcher.action, None)

    def announce(self, announce: commands.Announce) -> None:
        """Pass an announcement of the core to whoever watches its action."""
        running = self._running.get(announce.action)
        if running is None or running.announce.state != announce.state or announce.last:
            self._log(announce)
            running = _Running(announce)
        running.announce = announce
        if announce.last:
            self._running.pop(announce.action, None)
        else:
            self._running[announce.action] = running
        self._publish(running.news())

    @staticmethod
    def _log(announce: commands.Announce) -> None:
        log.info(
            "decided",
            action=announce.action,
            state=announce.state,
            reason=announce.reason,
            failure=announce.failure.what if announce.failure else None,
        )

    def refuse(self, refuse: commands.Refuse) -> None:
        """A request was refused: whoever waits for it gets the error."""
        error = error_of(refuse.failure)
        log.info("refused", action=refuse.action, error=str(error))
        for watcher in self._watchers.get(refuse.action, ()):
            watcher.end(error)

    def progressed(self, progress: shim_pb2.Progress) -> None:
        """Bytes done by one worker; told at most every PROGRESS_INTERVAL_S per action."""
        running = self._running.get(progress.action)
        if running is None:
            return
        running.workers[progress.worker] = (progress.done_bytes, progress.total_bytes)
        now = self._clock()
        if progress.done_bytes < progress.total_bytes:
            if now - running.told_at < PROGRESS_INTERVAL_S:
                return
            running.told_at = now
        self._publish(running.news())

    def end(self, why: AllstopError) -> None:
        """The leadership is over: nobody will be told any more here."""
        self._over = why
        for watchers in self._watchers.values():
            for watcher in watchers:
                watcher.end(why)

    def _publish(self, news: _News) -> None:
        for watcher in self._watchers.get(news.announce.action, ()):
            watcher.put(news)
