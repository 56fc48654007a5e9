"""Where ranks of a job meet after a checkpoint or a restore: keys go from one node to all others.

Kept in memory alone: after a change of leader every shim joins anew with the keys of its own node.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Hashable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Generic, TypeVar

import structlog
from allstop.v1 import shim_pb2

from coordinator.core.meeting import RANKS_MAX, Key, Table, batches

log = structlog.get_logger(__name__)

PUSH_S = 0.01  # what is set within so long goes out as one message
TABLES_BYTES_MAX = 512 << 20  # names and values of all meetings of one leader
JOINED_MAX = 256  # meetings of one shim, which opens one for each of its workers
BATCH_KEYS, BATCH_BYTES = 1_024, 512 << 10

Member = TypeVar("Member", bound=Hashable)
Name = tuple[str, str]  # job and action


@dataclass
class _Meeting(Generic[Member]):
    table: Table = field(default_factory=Table)
    members: dict[Member, None] = field(default_factory=dict)
    came: set[int] = field(default_factory=set)
    news: list[Key] = field(default_factory=list)
    full: bool = False


class Meetings(Generic[Member]):
    """All meetings of one leadership; a member is a place where a shim can be reached."""

    def __init__(
        self,
        epoch: int,
        send: Callable[[Iterable[Member], shim_pb2.CoordinatorMessage], None],
    ) -> None:
        """`send` queues one message for some members."""
        self._epoch = epoch
        self._send = send
        self._meetings: dict[Name, _Meeting[Member]] = {}
        self._joined: dict[Member, dict[Name, None]] = {}  # the one joined first at the beginning
        self._size_bytes = 0
        self._pushing: asyncio.TimerHandle | None = None

    def hear(self, member: Member, said: shim_pb2.Meeting) -> None:
        """A shim joins, says what its node's ranks have set, asks who has come, or leaves."""
        name = (said.job, said.action)
        if said.leave:
            self._leave(name, member)
            return
        meeting = self._meetings.setdefault(name, _Meeting())
        if member not in meeting.members:
            self._join(name, meeting, member)
        for key in keys_of(said):
            if self._apply(meeting.table, key):
                meeting.news.append(key)
            elif not meeting.full:
                meeting.full = True
                log.warning("there is no room for a key", job=said.job, action=said.action)
        if len(meeting.came) < RANKS_MAX:
            meeting.came.update(said.came)
        if meeting.news and self._pushing is None:
            self._pushing = asyncio.get_running_loop().call_later(PUSH_S, self.push)
        if said.ask:
            self._send([member], self._who_came(name, meeting))

    def forget(self, member: Member) -> None:
        """A shim is out of reach: it joins anew when it is back."""
        for name in list(self._joined.get(member, ())):
            self._leave(name, member)

    def push(self) -> None:
        """Tell every member what was set since the last time; their own keys do no harm."""
        if self._pushing is not None:
            self._pushing.cancel()
            self._pushing = None
        for name, meeting in self._meetings.items():
            for message in self._messages(name, meeting.news):
                self._send(meeting.members, message)
            meeting.news = []

    def close(self) -> None:
        """Nothing is told any more."""
        self._meetings.clear()
        self._joined.clear()
        self._size_bytes = 0
        if self._pushing is not None:
            self._pushing.cancel()
            self._pushing = None

    def _join(self, name: Name, meeting: _Meeting[Member], member: Member) -> None:
        """Tell a newcomer what it missed; of too many meetings it leaves the one it joined first.

        That harms nobody else: a meeting is there as long as it has members.
        """
        for message in self._messages(name, meeting.table.entries()):
            self._send([member], message)
        meeting.members[member] = None
        joined = self._joined.setdefault(member, {})
        joined[name] = None
        if len(joined) > JOINED_MAX:
            first = next(iter(joined))
            log.warning("a shim is in too many meetings", job=first[0], action=first[1])
            self._leave(first, member)

    def _apply(self, table: Table, key: Key) -> bool:
        """Set or delete a key; False when there is no room, in the meeting or in all of them."""
        if not key.deleted and self._size_bytes + key.size_bytes > TABLES_BYTES_MAX:
            return False
        before = table.size_bytes
        done = table.apply(key)
        self._size_bytes += table.size_bytes - before
        return done

    def _leave(self, name: Name, member: Member) -> None:
        joined = self._joined.get(member, {})
        if name not in joined:
            return
        del joined[name]
        if not joined:
            del self._joined[member]
        meeting = self._meetings[name]
        del meeting.members[member]
        if not meeting.members:
            del self._meetings[name]
            self._size_bytes -= meeting.table.size_bytes

    def _messages(self, name: Name, keys: Iterable[Key]) -> Iterator[shim_pb2.CoordinatorMessage]:
        for batch in batches(keys, count_max=BATCH_KEYS, bytes_max=BATCH_BYTES):
            meeting = shim_pb2.Meeting(epoch=self._epoch, job=name[0], action=name[1])
            for key in batch:
                meeting.keys.add(name=key.name, value=key.value, deleted=key.deleted)
            yield shim_pb2.CoordinatorMessage(meeting=meeting)

    def _who_came(self, name: Name, meeting: _Meeting[Member]) -> shim_pb2.CoordinatorMessage:
        answer = shim_pb2.Meeting(
            epoch=self._epoch, job=name[0], action=name[1], came=sorted(meeting.came), ask=True
        )
        return shim_pb2.CoordinatorMessage(meeting=answer)


def keys_of(said: shim_pb2.Meeting) -> Iterator[Key]:
    """The keys of a message, in its order."""
    return (Key(key.name, key.value, key.deleted) for key in said.keys)
