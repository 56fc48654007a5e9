"""A cleaning of a job's image stores: snapshots that are deleted, what ended attempts have left.

    MARKING     the snapshots' records become DELETING, which nothing takes back
    LISTING     a node that sees the store says of which attempts anything is there
    WEIGHING    etcd says which of these are over and no snapshot, and which images stay
    COLLECTING  that node removes what the dead wrote and no image that stays needs
    FORGETTING  the snapshots' records are removed
    WAITING     something was in the way; it is begun anew after a while, for ever

LISTING to COLLECTING come once for each store. Each step can be done again after a crash, so a new
leader that finds DELETING snapshots begins with LISTING. Without snapshots it is a collection of
garbage, which trouble ends. An attempt counts as over by its record in etcd alone: what a leader
has given up without being able to record that may still be committed by the next.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import ClassVar, Protocol

from coordinator.core.commands import (
    Announce,
    Command,
    ForgetSnapshots,
    MarkSnapshots,
    SendTask,
    WeighAttempts,
)
from coordinator.core.events import (
    AttemptsWeighed,
    Event,
    NodeAttached,
    NodeLeft,
    NodeLost,
    SnapshotsForgotten,
    SnapshotsMarked,
    StoreRefused,
    TaskAnswered,
    TimePassed,
)
from coordinator.core.failures import listed
from coordinator.core.kept import Cleaned
from coordinator.core.model import Failure
from coordinator.core.policy import Policy
from coordinator.core.table import Ignored, Row, Table

NEVER = float("inf")
UNSEEN = "LinkError"  # kind of the failure of a cleaning that waits for a node


class CleaningState(StrEnum):
    """Where a cleaning stands."""

    MARKING = "MARKING"
    LISTING = "LISTING"
    WEIGHING = "WEIGHING"
    COLLECTING = "COLLECTING"
    FORGETTING = "FORGETTING"
    WAITING = "WAITING"
    DONE = "DONE"
    FAILED = "FAILED"


S = CleaningState


class Reach(Protocol):
    """Who can be asked about a store."""

    def seeing(self, store: str) -> str:
        """A node in reach that sees this store; empty: there is none."""

    def stores(self) -> tuple[str, ...]:
        """Every store that a node in reach sees."""


@dataclass
class Cleaning:
    """One cleaning on its way; changed only by the handlers of the table."""

    ENDS: ClassVar[frozenset[StrEnum]] = frozenset({S.DONE, S.FAILED})

    id: str
    job: str
    epoch: int
    policy: Policy
    reach: Reach
    started: float
    why: str
    wanted: tuple[str, ...] = ()  # snapshots that are to be marked
    snapshots: tuple[str, ...] = ()  # those that are DELETING in etcd
    stores: tuple[str, ...] = ()  # empty: all in reach
    latest_too: bool = False
    users: tuple[str, ...] = ()  # actions that have used what is wanted
    dry_run: bool = False
    unknown: bool = False  # attempts without a record count as over
    state: CleaningState = S.MARKING
    reason: str = ""
    failure: Failure | None = None  # why it waits, or has failed
    refusal: Failure | None = None  # why one of those wanted was not marked
    left: list[str] = field(default_factory=list)  # stores that this try has not cleaned
    node: str = ""  # that was given the task
    task: str = ""
    deadline: float = NEVER
    tries: int = 0  # that ended in WAITING
    number: int = 0  # of tasks given
    objects: int = 0
    freed_bytes: int = 0
    dead: set[str] = field(default_factory=set)
    strangers: set[str] = field(default_factory=set)
    said: list[tuple[str, bool]] = field(default_factory=list)  # reason, ignored

    @property
    def ended(self) -> bool:
        """Whether nothing follows."""
        return self.state in self.ENDS

    @property
    def holds(self) -> frozenset[str]:
        """Snapshots that nobody may begin to use."""
        return frozenset((*self.wanted, *self.snapshots))

    def ignore(self, reason: str) -> None:
        """Note that the event changed nothing, and why."""
        self.said.append((reason, True))

    def move(self, state: CleaningState, reason: str) -> None:
        """Go to a state for a reason."""
        self.state, self.reason = state, reason
        self.said.append((reason, False))

    def announce(self, now: float) -> Announce:
        """What to tell whoever watches."""
        return Announce(
            action=self.id,
            state=str(self.state),
            reason=self.reason,
            elapsed_s=now - self.started,
            last=self.ended,
            failure=self.outcome(),
            cleaned=self.cleaned(),
        )

    def outcome(self) -> Failure | None:
        """What went wrong in the end; trouble on the way to a good end is none."""
        if self.state is S.DONE:
            return self.refusal
        return self.failure if self.ended else None

    def cleaned(self) -> Cleaned:
        """What it has removed so far, or would."""
        done = self.state is S.DONE
        return Cleaned(
            objects=self.objects,
            freed_bytes=self.freed_bytes,
            snapshots=self.snapshots if done else (),
            attempts=tuple(sorted(self.dead)),
            unknown=tuple(sorted(self.strangers)),
            dry_run=self.dry_run,
        )

    def begin(self, now: float) -> list[Command]:
        """Mark what is to be deleted, or go on with what is marked, or look for garbage."""
        if self.wanted:
            self.move(S.MARKING, f"{_named(self.wanted)} to be deleted: {self.why}")
            mark = MarkSnapshots(
                self.job, self.id, self.wanted, self.why, self.latest_too, self.users
            )
            return [mark, self.announce(now)]
        return look(self, now)

    def give(self, now: float, seconds: float, **what: object) -> SendTask:
        """A task for the node, under a new id: of an older one no answer counts."""
        self.number += 1
        self.task = f"{self.id}.{self.number}"
        self.deadline = now + seconds
        return SendTask(
            self.node,
            self.epoch,
            self.task,
            self.job,
            seconds,
            **what,  # type: ignore[arg-type]
        )

    def takes(self, event: TaskAnswered) -> bool:
        """Whether an answer is that of the task under way; noted when it is not."""
        if (event.node, event.task) == (self.node, self.task):
            return True
        self.ignore(f"task {event.task} of {event.node} is not waited for any more")
        return False


def _named(snapshots: tuple[str, ...]) -> str:
    return f"{listed(list(snapshots))} {'is' if len(snapshots) == 1 else 'are'}"


# -- the arrows ------------------------------------------------------------------------------------


def look(c: Cleaning, now: float) -> list[Command]:
    """Begin a try: every store that may hold something."""
    c.left = list(c.stores or c.reach.stores())
    c.objects = c.freed_bytes = 0
    if not c.left:
        return trouble(c, Failure(UNSEEN, "no node that sees an image store is in reach"), now)
    return _next_store(c, now)


def _next_store(c: Cleaning, now: float) -> list[Command]:
    if not c.left:
        return _cleaned(c, now)
    c.node = c.reach.seeing(c.left[0])
    if not c.node:
        what = f"no node in reach sees the image store {c.left[0]}"
        advice = "start a shim on a machine that sees it"
        return trouble(c, Failure(UNSEEN, what, advice=advice), now)
    c.move(S.LISTING, f"{c.node} looks what is in the image store")
    return [c.give(now, c.policy.clean_list_s), c.announce(now)]


def _cleaned(c: Cleaning, now: float) -> list[Command]:
    c.deadline = NEVER
    if c.snapshots:
        c.move(S.FORGETTING, f"{c.objects} objects are gone, {c.freed_bytes} bytes")
        return [ForgetSnapshots(c.job, c.id, c.snapshots), c.announce(now)]
    would = "would be" if c.dry_run else "are"
    c.move(S.DONE, f"{c.objects} objects {would} gone, {c.freed_bytes} bytes")
    return [c.announce(now)]


def on_marked(c: Cleaning, event: SnapshotsMarked, now: float) -> list[Command]:
    c.wanted = ()
    c.snapshots = tuple(dict.fromkeys((*c.snapshots, *event.marked)))
    for failure in event.refused:
        c.said.append((failure.what, False))
    c.refusal = event.refused[0] if event.refused else None
    if not c.snapshots:
        c.failure = c.refusal
        c.move(S.FAILED, f"nothing is deleted: {event.refused[0].what if event.refused else ''}")
        return [c.announce(now)]
    return look(c, now)


def on_listed(c: Cleaning, event: TaskAnswered, now: float) -> list[Command]:
    if not c.takes(event):
        return []
    if event.failure is not None:
        return trouble(c, event.failure, now)
    c.deadline = NEVER
    c.move(S.WEIGHING, f"{len(event.attempts)} attempts have something in the image store")
    weigh = WeighAttempts(c.job, c.id, event.attempts, c.snapshots)
    return [weigh, c.announce(now)]


def on_weighed(c: Cleaning, event: AttemptsWeighed, now: float) -> list[Command]:
    c.strangers |= set(event.unknown)
    dead = (*event.dead, *(event.unknown if c.unknown else ()))
    c.dead |= set(dead) - set(c.snapshots)
    if not dead:
        c.left.pop(0)
        return _next_store(c, now)
    c.move(S.COLLECTING, f"{c.node} removes what {listed(list(dead))} wrote")
    collect = c.give(now, c.policy.clean_collect_s, dead=dead, keep=event.keep, dry_run=c.dry_run)
    return [collect, c.announce(now)]


def on_collected(c: Cleaning, event: TaskAnswered, now: float) -> list[Command]:
    if not c.takes(event):
        return []
    if event.failure is not None:
        return trouble(c, event.failure, now)
    c.objects += event.objects
    c.freed_bytes += event.freed_bytes
    c.left.pop(0)
    return _next_store(c, now)


def on_forgotten(c: Cleaning, event: SnapshotsForgotten, now: float) -> list[Command]:
    c.move(S.DONE, f"{_named(c.snapshots)} deleted: {c.why}")
    return [c.announce(now)]


def on_gone(c: Cleaning, event: NodeLost | NodeLeft, now: float) -> list[Command]:
    """What the node has done is not known; another one looks."""
    if event.node != c.node:
        c.ignore(f"{event.node} was not given the task")
        return []
    return _next_store(c, now)


def on_late(c: Cleaning, event: TimePassed, now: float) -> list[Command]:
    if now < c.deadline:
        return []
    what = f"{c.node} has not answered within the time for {c.state}"
    return trouble(c, Failure("DeadlinePassed", what, node=c.node, definite=False), now)


def on_refused(c: Cleaning, event: StoreRefused, now: float) -> list[Command]:
    return trouble(c, event.failure, now)


def on_mark_refused(c: Cleaning, event: StoreRefused, now: float) -> list[Command]:
    """Nothing is known to be marked: what was marked before goes on."""
    c.wanted, c.failure = (), event.failure
    if c.snapshots:
        return look(c, now)
    c.move(S.FAILED, f"nothing is deleted: {event.failure.what}")
    return [c.announce(now)]


def on_again(c: Cleaning, event: TimePassed | NodeAttached, now: float) -> list[Command]:
    if isinstance(event, TimePassed):
        return look(c, now) if now >= c.deadline else []
    if c.failure is not None and c.failure.kind != UNSEEN:
        c.ignore("it does not wait for a node")
        return []
    return look(c, now)


def trouble(c: Cleaning, failure: Failure, now: float) -> list[Command]:
    """What is marked must go in the end; garbage may wait for another cleaning."""
    c.failure, c.node, c.task = failure, "", ""
    if not c.snapshots:
        c.move(S.FAILED, f"given up: {failure.what}")
        return [c.announce(now)]
    pause_s = min(c.policy.clean_again_max_s, c.policy.clean_again_s * 2 ** min(c.tries, 30))
    c.tries += 1
    c.deadline = now + pause_s
    c.move(S.WAITING, f"tried again in {pause_s:g} s, as {failure.what}")
    return [c.announce(now)]


# -- the table -------------------------------------------------------------------------------------

_AFTER_TASK = (S.LISTING, S.FORGETTING, S.WAITING, S.DONE, S.FAILED)
_LATE = (S.WAITING, S.FAILED)
_ANOTHER = Ignored("no node is waited for in this state")
_NOBODY = Ignored("a node was given the task already")
_OLD = Ignored("that task is not waited for any more")
_TIMELESS = Ignored("the store's writes have deadlines of their own, and always answer")
_NO_WRITE = Ignored("no write is awaited in this state")
_LOOKED = Ignored("that was answered, or is asked anew")


def _rows(**own: Row) -> Mapping[type[Event], Row | Ignored]:
    """A state's rows: its own by the event's name, the others with the reason why not."""
    rows: dict[type[Event], Row | Ignored] = {
        SnapshotsMarked: _LOOKED,
        TaskAnswered: _OLD,
        AttemptsWeighed: _LOOKED,
        SnapshotsForgotten: _LOOKED,
        NodeLost: _ANOTHER,
        NodeLeft: _ANOTHER,
        NodeAttached: _NOBODY,
        StoreRefused: _NO_WRITE,
        TimePassed: _TIMELESS,
    }
    return {kind: own.get(kind.__name__, row) for kind, row in rows.items()}


_ASKED = {
    "NodeLost": Row(on_gone, (S.LISTING, S.COLLECTING, S.WAITING, S.FAILED)),
    "NodeLeft": Row(on_gone, (S.LISTING, S.COLLECTING, S.WAITING, S.FAILED)),
}

TRANSITIONS: Table[CleaningState] = {
    S.MARKING: _rows(
        SnapshotsMarked=Row(on_marked, (S.LISTING, S.WAITING, S.FAILED)),
        StoreRefused=Row(on_mark_refused, (S.LISTING, S.WAITING, S.FAILED)),
    ),
    S.LISTING: _rows(
        TaskAnswered=Row(on_listed, (S.LISTING, S.WEIGHING, S.WAITING, S.FAILED)),
        TimePassed=Row(on_late, (S.LISTING, *_LATE)),
        **_ASKED,
    ),
    S.WEIGHING: _rows(
        AttemptsWeighed=Row(on_weighed, (S.COLLECTING, *_AFTER_TASK)),
        StoreRefused=Row(on_refused, _LATE),
    ),
    S.COLLECTING: _rows(
        TaskAnswered=Row(on_collected, (S.COLLECTING, *_AFTER_TASK)),
        TimePassed=Row(on_late, (S.COLLECTING, *_LATE)),
        **_ASKED,
    ),
    S.FORGETTING: _rows(
        SnapshotsForgotten=Row(on_forgotten, (S.DONE,)),
        StoreRefused=Row(on_refused, (S.WAITING,)),
    ),
    S.WAITING: _rows(
        TimePassed=Row(on_again, (S.LISTING, S.WAITING)),
        NodeAttached=Row(on_again, (S.LISTING, S.WAITING)),
    ),
    S.DONE: {},
    S.FAILED: {},
}
