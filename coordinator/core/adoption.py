"""What a new leader does with attempts and restores that an earlier one left unfinished.

Nobody knows how far they got, so they are undone: the shims look, and undo what there is. Their
nodes are told as they attach, within `adopt_s`; whoever does not attach lets go by its own timer.
"""

from __future__ import annotations

from dataclasses import dataclass

from coordinator.core import aborting, attempt, failing, returning
from coordinator.core.attempt import Attempt
from coordinator.core.commands import Command
from coordinator.core.errors import AttemptFailed, RestoreFailed
from coordinator.core.model import (
    AttemptRecord,
    AttemptState,
    Failure,
    Phase,
    RestoreRecord,
)
from coordinator.core.policy import Policy
from coordinator.core.returning import Restore

HAVE_ENDED = Attempt.ENDS | Restore.ENDS


def id_of(record: AttemptRecord | RestoreRecord) -> str:
    """The id of an action by its record."""
    return record.attempt if isinstance(record, AttemptRecord) else record.restore


@dataclass(frozen=True)
class Heir:
    """A new leader at the moment it takes over."""

    epoch: int
    coordinator: str
    policy: Policy
    now: float

    def take(
        self, record: AttemptRecord | RestoreRecord, workers: int
    ) -> tuple[Attempt | Restore, list[Command]]:
        """An unfinished action, on its way to its end; `workers` 0: not known how many."""
        if isinstance(record, AttemptRecord):
            return self._attempt(record, workers)
        r = returning.from_record(record, epoch=self.epoch, policy=self.policy, now=self.now)
        failure = self._orphaned(RestoreFailed.__name__, record)
        return r, failing.undo_adopted(r, failure, self.now)

    def _attempt(self, record: AttemptRecord, workers: int) -> tuple[Attempt, list[Command]]:
        a = attempt.from_record(
            record, epoch=self.epoch, policy=self.policy, workers=workers, now=self.now
        )
        if a.state is not AttemptState.COMMITTING:
            failure = self._orphaned(AttemptFailed.__name__, record)
            return a, aborting.undo_adopted(a, failure, self.now)
        a.open_round(Phase.COMMIT, self.policy.commit_s, self.now, capped=False, whom="the store")
        a.move(a.state, "found while it was being committed; the store is asked how it ended")
        return a, [a.announce(self.now)]

    def _orphaned(self, kind: str, record: AttemptRecord | RestoreRecord) -> Failure:
        return Failure(
            kind=kind,
            what=f"the leader of epoch {record.epoch} ended while {id_of(record)} was "
            f"{record.state}; {self.coordinator} leads now",
            job=record.job,
            advice="try again",
        )
