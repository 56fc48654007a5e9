"""One attempt at a checkpoint as data: its begin, its record, and how a new leader finds it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from enum import StrEnum
from typing import ClassVar

from coordinator.core.action import NOT_SEEN, Action, Member
from coordinator.core.commands import Command, PutAttempt
from coordinator.core.errors import AllstopError, AttemptFailed, BugError
from coordinator.core.model import (
    AttemptRecord,
    AttemptState,
    Cut,
    Phase,
    RankState,
    Snapshot,
    WorkerRecord,
)
from coordinator.core.policy import Policy

S = AttemptState


def trusted(records: Iterable[WorkerRecord]) -> str:
    """Nobody knows of anything that speaks against what was saved."""
    return ""


@dataclass
class Attempt(Action[AttemptState]):
    """One attempt on its way; its members are frozen when it begins."""

    FAILED_AS: ClassVar[type[AllstopError]] = AttemptFailed
    ENDS: ClassVar[frozenset[StrEnum]] = frozenset({S.COMMITTED, S.ABORTED})

    cut: Cut = Cut.STEP
    stop: bool = False
    gpu: bool = False  # some rank has state on a device: GPU_LOCK and GPU_SAVE are part of it
    rebuilds: bool = False  # ranks destroy their NCCL communicators once all are parked
    torn: bool = False  # they were ordered to, and nobody is known to have been let go since
    world_size: int = 0  # 0: not known before HOLD
    target: int = 0
    cause: str = ""  # why it was due; empty: an operator asked
    base: str = ""  # snapshot whose stored bytes it shares: that stays until this is over
    keep: bool = False  # whether it was committed is not known: undo leaves the images in the store
    answers: dict[int, tuple[RankState, ...]] = field(default_factory=dict)  # ranks at HOLD
    records: dict[int, WorkerRecord] = field(default_factory=dict)
    persisted: set[int] = field(default_factory=set)
    stopped: set[int] = field(default_factory=set)  # workers that have ended since the cut
    held_ms: dict[int, int] = field(default_factory=dict)  # by worker, from Resumed
    cut_recorded: bool = False  # PERSISTING was put: a new leader goes on from there
    snapshot: Snapshot | None = None
    suspicion: Callable[[Iterable[WorkerRecord]], str] = trusted  # why what is saved may be wrong

    def finds_devices(self) -> None:
        """A rank began to use one after the last report before the attempt."""
        if not self.gpu:
            self.gpu, self.policy = True, self.policy.with_devices()

    @property
    def pause_ms(self) -> int:
        """How long the worker that stood still longest did, as far as known."""
        return max(self.held_ms.values(), default=0)

    @property
    def owed(self) -> tuple[int, ...]:
        """Workers that have not said that they did the last order of this attempt."""
        if self.state is S.ABORTED:
            return self.not_undone()
        if self.state is S.COMMITTED and self.stop:
            return tuple(w for w in self.members if w not in self.stopped)
        return ()

    def record(self, state: AttemptState | None = None) -> AttemptRecord:
        """The attempt as etcd keeps it, in its own state or in the one it is about to reach."""
        return AttemptRecord(
            attempt=self.id,
            job=self.job,
            state=state or self.state,
            epoch=self.epoch,
            incarnation=self.incarnation,
            cut=self.cut,
            stop=self.stop,
            target=self.target,
            deadline_s=self.deadline_s,
            requested_unix_s=self.unix_s,
            reason=self.reason,
            failure=self.failure,
            timings=tuple(self.timings),
            pause_ms=self.pause_ms,
            nodes=tuple(self.members[w].node for w in sorted(self.members)),
            owed=self.owed,
            keep=self.keep,
            world_size=self.world_size,
            gpu=self.gpu,
            cause=self.cause,
            base=self.base,
        )

    def begin(self, now: float) -> list[Command]:
        """Have the attempt recorded; nothing is held before that is done."""
        self.open_round(Phase.ADMIT, self.policy.admit_s, now, whom="the store")
        why = f"due by itself: {self.cause}" if self.cause else "asked for"
        self.move(S.ADMITTING, f"{why}; {len(self.members)} workers are members")
        return [PutAttempt(self.record()), self.announce(now)]

    def validate(self) -> None:
        """Raise BugError when the attempt breaks a rule of its own."""
        awaited = {w for r in self.rounds.values() for w in r.awaited}
        if awaited - self.members.keys():
            raise BugError(f"{self.id} awaits workers {awaited - self.members.keys()} of nobody")
        if self.ended and self.rounds:
            raise BugError(f"{self.id} is {self.state} and still awaits {list(self.rounds)}")
        if not self.ended and not self.rounds:
            raise BugError(f"{self.id} is {self.state} and awaits nobody: it would never end")
        if self.state is S.ABORTED and self.failure is None:
            raise BugError(f"{self.id} is ABORTED without a failure")
        committed = self.state is S.COMMITTED and not self.adopted
        if committed and (self.snapshot is None or self.persisted != self.members.keys()):
            raise BugError(f"{self.id} is COMMITTED without everything in the store")


def from_record(record: AttemptRecord, *, epoch: int, policy: Policy, now: float) -> Attempt:
    """An attempt of an earlier leader; none of its nodes has attached to this one yet."""
    members = {w: Member(w, node) for w, node in enumerate(record.nodes)}
    return Attempt(
        id=record.attempt,
        job=record.job,
        epoch=epoch,
        incarnation=record.incarnation,
        policy=policy.with_devices() if record.gpu else policy,
        started=now,
        deadline_s=record.deadline_s,
        unix_s=record.requested_unix_s,
        members=members,
        state=record.state,
        reason=record.reason,
        failure=record.failure,
        timings=list(record.timings),
        lost=dict.fromkeys(members, NOT_SEEN),
        cut=record.cut,
        stop=record.stop,
        target=record.target,
        world_size=record.world_size,
        gpu=record.gpu,
        cause=record.cause,
        base=record.base,
        ordered=True,
        adopted=True,
        cut_recorded=record.state is S.PERSISTING,
    )
