"""This node's side of meetings: the keys that its ranks read, and what goes to the other nodes.

A meeting is of one job and one action. Each worker here has a prefix of its own, a secret that only
its ranks are told; between nodes keys travel without it.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field

import structlog
from allstop.v1 import shim_pb2

from coordinator.core.meeting import KEYS_MAX, Key, Table, batches

log = structlog.get_logger(__name__)

BATCH_KEYS, BATCH_BYTES = 1_024, 512 << 10
GONE_MAX = 256  # connections that are remembered

Name = tuple[str, str]  # job and action
Send = Callable[[shim_pb2.ShimMessage], bool]


@dataclass(eq=False)
class Visitor:
    """One connection of a rank to the endpoint, and what it was there for."""

    port: int  # its own, on the loopback address
    pid: int = 0  # of the rank, once that was looked up
    rank: int = -1  # likewise
    awaited: bytes = b""  # the key that it asked for last and that nobody has set
    set_keys: set[bytes] = field(default_factory=set)
    read_keys: set[bytes] = field(default_factory=set)

    @property
    def keys(self) -> set[bytes]:
        """What it has set or read."""
        return self.set_keys | self.read_keys

    def note(self, keys: set[bytes], name: bytes) -> None:
        """Remember a key, unless a client has gone wild."""
        if len(keys) < KEYS_MAX:
            keys.add(name)


@dataclass(eq=False)
class Meeting:
    """The meeting of one job after one action, as this node knows it."""

    job: str
    action: str
    table: Table = field(default_factory=Table)
    own: dict[bytes, None] = field(default_factory=dict)  # names that ranks of this node have set
    visitors: dict[Visitor, None] = field(default_factory=dict)  # connected
    gone: deque[Visitor] = field(default_factory=lambda: deque(maxlen=GONE_MAX))
    came: set[int] = field(default_factory=set)  # ranks of this node
    workers: dict[str, str] = field(default_factory=dict)  # here, each with its prefix
    unsent: list[Key] = field(default_factory=list)
    answers: set[asyncio.Future[frozenset[int]]] = field(default_factory=set)

    @property
    def name(self) -> Name:
        """Job and action."""
        return (self.job, self.action)

    @property
    def seen(self) -> tuple[Visitor, ...]:
        """Who is connected or was, the longest gone left out."""
        return (*self.gone, *self.visitors)

    def leave(self, visitor: Visitor) -> None:
        """A connection has ended; what a known rank has had is remembered."""
        if visitor in self.visitors:
            del self.visitors[visitor]
            visitor.awaited = b""
            if visitor.pid:
                self.gone.append(visitor)


class Meetings:
    """The open meetings of this node; `send` takes messages to a coordinator when there is one."""

    def __init__(self) -> None:
        """Nothing is open and nobody is told anything."""
        self.send: Send = lambda message: False
        self._meetings: dict[Name, Meeting] = {}
        self._prefixes: dict[bytes, Meeting] = {}
        self._flushing: asyncio.Handle | None = None

    # -- workers -----------------------------------------------------------------------------------

    def open(self, job: str, worker: str, action: str) -> str:
        """Ranks of this worker are about to meet; return the prefix for their keys.

        The worker's meeting after an earlier action is left. The same one again changes nothing.
        """
        self.close(worker, but=action)
        meeting = self._meetings.setdefault((job, action), Meeting(job, action))
        if worker not in meeting.workers:
            prefix = meeting.workers[worker] = f"{action}.{secrets.token_hex(16)}"
            self._prefixes[prefix.encode()] = meeting
        self._join(meeting)
        return meeting.workers[worker]

    def of(self, worker: str) -> Meeting | None:
        """The meeting that ranks of this worker are in."""
        return next((each for each in self._meetings.values() if worker in each.workers), None)

    def close(self, worker: str, *, but: str = "") -> None:
        """The worker's ranks are through, or it is gone; its prefix means nothing any more."""
        for meeting in list(self._meetings.values()):
            if worker not in meeting.workers or meeting.action == but:
                continue
            del self._prefixes[meeting.workers.pop(worker).encode()]
            if not meeting.workers:
                self._flush()
                del self._meetings[meeting.name]
                self._tell(meeting, shim_pb2.Meeting(leave=True))

    # -- ranks -------------------------------------------------------------------------------------

    def find(self, full: bytes) -> tuple[Meeting, bytes] | None:
        """The meeting that a rank's key is of, and the name it has there; None for no prefix."""
        prefix, _, name = full.partition(b"/")
        meeting = self._prefixes.get(prefix)
        return None if meeting is None or not name else (meeting, name)

    def apply(self, meeting: Meeting, key: Key) -> bool:
        """A rank of this node sets or deletes a key; False when the meeting is full."""
        if not meeting.table.apply(key):
            return False
        if key.deleted:
            meeting.own.pop(key.name, None)
        else:
            meeting.own[key.name] = None
        meeting.unsent.append(key)
        if self._flushing is None:
            self._flushing = asyncio.get_running_loop().call_soon(self._flush)
        return True

    def came(self, meeting: Meeting, ranks: Iterable[int]) -> None:
        """These ranks of this node have come; the others hear of it when they ask."""
        news = set(ranks) - meeting.came
        if news:
            meeting.came |= news
            self._tell(meeting, shim_pb2.Meeting(came=sorted(news)))

    async def who_came(self, meeting: Meeting, *, deadline_s: float) -> frozenset[int] | None:
        """Ask the coordinator which ranks of the job have come; None without an answer in time."""
        answer: asyncio.Future[frozenset[int]] = asyncio.get_running_loop().create_future()
        meeting.answers.add(answer)
        self._tell(meeting, shim_pb2.Meeting(came=sorted(meeting.came), ask=True))
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(deadline_s):
                return await answer
        meeting.answers.discard(answer)
        return None

    # -- the coordinator ---------------------------------------------------------------------------

    def hear(self, said: shim_pb2.Meeting) -> None:
        """What ranks of other nodes have set, or who has come."""
        meeting = self._meetings.get((said.job, said.action))
        if meeting is None:
            return
        for key in said.keys:
            # What a rank of this node has set is newer than what has gone round.
            if key.deleted:
                meeting.own.pop(key.name, None)
            if key.name not in meeting.own:
                meeting.table.apply(Key(key.name, key.value, key.deleted))
        if said.ask:
            for answer in meeting.answers:
                if not answer.done():
                    answer.set_result(frozenset(said.came))
            meeting.answers.clear()

    def rejoin(self) -> None:
        """A coordinator has welcomed us: it knows nothing of our meetings."""
        for meeting in self._meetings.values():
            self._join(meeting)

    def _join(self, meeting: Meeting) -> None:
        meeting.unsent.clear()
        self._tell(meeting, shim_pb2.Meeting(came=sorted(meeting.came)))
        known = (Key(name, meeting.table.get(name) or b"") for name in meeting.own)
        for message in _messages(known):
            self._tell(meeting, message)

    def _flush(self) -> None:
        if self._flushing is not None:
            self._flushing.cancel()
            self._flushing = None
        for meeting in self._meetings.values():
            unsent, meeting.unsent = meeting.unsent, []
            for message in _messages(unsent):
                self._tell(meeting, message)

    def _tell(self, meeting: Meeting, message: shim_pb2.Meeting) -> None:
        """Without a stream nothing is told: all of it is when there is one again."""
        message.job, message.action = meeting.name
        self.send(shim_pb2.ShimMessage(meeting=message))


def _messages(keys: Iterable[Key]) -> Iterator[shim_pb2.Meeting]:
    for batch in batches(keys, count_max=BATCH_KEYS, bytes_max=BATCH_BYTES):
        message = shim_pb2.Meeting()
        for key in batch:
            message.keys.add(name=key.name, value=key.value, deleted=key.deleted)
        yield message
