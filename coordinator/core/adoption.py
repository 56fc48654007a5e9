"""What a new leader does with attempts and restores that an earlier one left unfinished.

| found as | means | so |
|---|---|---|
| attempt ADMITTING | something may be held or dumped; no cut is known | undo |
| attempt PERSISTING | it was cut, and the job may run | go on storing; undo if one has let go |
| attempt ABORTING | it was cut, and then given up | undo |
| attempt STOPPING | the snapshot is committed | go on stopping |
| restore ADMITTING | images may be on nodes; the job may still run as it was | undo |
| restore CLEARING | some of the old incarnation may be gone, nothing new runs | undo |
| restore RELEASING | every tree was back, some may run | go on releasing, unless one is gone |

COMMITTING is never stored: the commit is one transaction under the epoch, and whoever reads the
store under a later epoch sees whether it went through. Undo is done by looking: nodes are told as
they attach, within `adopt_s`; whoever does not lets go by its own timer and is owed the order.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from coordinator.core import aborting, attempt, failing, inheriting, releasing, returning
from coordinator.core.attempt import Attempt
from coordinator.core.commands import Command
from coordinator.core.errors import AttemptFailed, RestoreFailed
from coordinator.core.model import (
    AttemptRecord,
    AttemptState,
    Failure,
    RestoreRecord,
    RestoreState,
    WorkerRecord,
)
from coordinator.core.policy import Policy
from coordinator.core.returning import Restore

HAVE_ENDED = Attempt.ENDS | Restore.ENDS


def id_of(record: AttemptRecord | RestoreRecord) -> str:
    """The id of an action by its record."""
    return record.attempt if isinstance(record, AttemptRecord) else record.restore


def later(record: AttemptRecord | RestoreRecord, epoch: int) -> str:
    """Why a record that no earlier leader can have written is left alone."""
    return (
        f"{id_of(record)} is of epoch {record.epoch}, and this leader is of epoch {epoch}: "
        "somebody edited it, or etcd was put back from an older copy"
    )


@dataclass(frozen=True)
class Heir:
    """A new leader at the moment it takes over."""

    epoch: int
    coordinator: str
    policy: Policy
    now: float
    suspicion: Callable[[Iterable[WorkerRecord]], str] = attempt.trusted  # see Attempt

    def take(
        self, record: AttemptRecord | RestoreRecord
    ) -> tuple[Attempt | Restore, list[Command]]:
        """An unfinished action, on its way to its end."""
        if isinstance(record, AttemptRecord):
            return self._attempt(record)
        r = returning.from_record(record, epoch=self.epoch, policy=self.policy, now=self.now)
        if record.state is RestoreState.RELEASING:
            return r, releasing.inherit(r, self.now)
        failure = self._orphaned(RestoreFailed.__name__, record)
        return r, failing.inherit(r, failure, self.now)

    def _attempt(self, record: AttemptRecord) -> tuple[Attempt, list[Command]]:
        a = attempt.from_record(record, epoch=self.epoch, policy=self.policy, now=self.now)
        a.suspicion = self.suspicion
        if a.state is AttemptState.STOPPING:
            return a, inheriting.stop(a, self.now)
        if a.state is AttemptState.PERSISTING and a.members:
            return a, inheriting.persist(a, self.now)
        failure = self._orphaned(AttemptFailed.__name__, record)
        return a, aborting.inherit(a, failure, self.now)

    def _orphaned(self, kind: str, record: AttemptRecord | RestoreRecord) -> Failure:
        return Failure(
            kind=kind,
            what=f"the leader of epoch {record.epoch} ended while {id_of(record)} was "
            f"{_told(record)}; {self.coordinator} leads now",
            job=record.job,
            advice="try again; a job with NCCL that takes no step within minutes lacks "
            "communicators: restore it"
            if isinstance(record, AttemptRecord)
            else "restore again",
        )


def _told(record: AttemptRecord | RestoreRecord) -> str:
    """How far it had come, as far as that is recorded: most states are not."""
    if record.state is AttemptState.ADMITTING:
        return "ADMITTING or later, before its cut"
    if record.state is RestoreState.ADMITTING:
        return "ADMITTING or FETCHING"
    return str(record.state)
