"""The door of the core: events go in, commands come out, and nothing else changes its state.

(Skeleton: the signatures are settled, the bodies follow.)
"""

from __future__ import annotations

from collections.abc import Sequence

from coordinator.core.commands import Announce, Command
from coordinator.core.events import Event
from coordinator.core.journal import Decision
from coordinator.core.model import (
    AttemptRecord,
    JobRecord,
    NodeFacts,
    NodeReasons,
    Plan,
    RestoreRecord,
    Snapshot,
)
from coordinator.core.policy import Policy
from coordinator.core.view import JobView, NodeView


class Control:
    """All decisions of one leader, from its election to its end.

    Times are monotonic seconds of the caller. One event at a time; a call never blocks.
    """

    def __init__(self, *, epoch: int, coordinator: str, policy: Policy | None = None) -> None:
        """Begin with nothing known; `adopt` what the store holds before the first event."""

    def adopt(
        self,
        *,
        jobs: Sequence[JobRecord],
        attempts: Sequence[AttemptRecord],
        restores: Sequence[RestoreRecord],
        now: float,
    ) -> list[Command]:
        """Take over what an earlier leader left: unfinished attempts are undone, restores failed.

        For an attempt found in COMMITTING the caller reads the store and then hands in
        SnapshotCommitted or CommitRefused. Finished records are taken too and only remembered.
        """
        raise NotImplementedError

    def handle(self, event: Event, now: float) -> list[Command]:
        """Decide on one event and return what is to be done, in this order.

        Late, duplicate and foreign events return nothing and are noted in the journal. Raises
        IllegalEvent, with nothing changed, for an event that cannot be.
        """
        raise NotImplementedError

    def next_wakeup(self) -> float | None:
        """When to hand in TimePassed at the latest; None while nothing is awaited."""
        raise NotImplementedError

    def plan(
        self, snapshot: Snapshot, files: Sequence[NodeFacts] = ()
    ) -> tuple[Plan | None, tuple[NodeReasons, ...]]:
        """Say where a snapshot would go now, without doing it; reasons for every other node."""
        raise NotImplementedError

    def jobs(self) -> tuple[JobView, ...]:
        """All jobs, by name."""
        raise NotImplementedError

    def nodes(self) -> tuple[NodeView, ...]:
        """All nodes, by name, those lost and left included."""
        raise NotImplementedError

    def attempts(self) -> tuple[AttemptRecord, ...]:
        """Running and remembered attempts, newest last."""
        raise NotImplementedError

    def restores(self) -> tuple[RestoreRecord, ...]:
        """Running and remembered restores, newest last."""
        raise NotImplementedError

    def attempt(self, attempt: str) -> AttemptRecord | None:
        """One running or remembered attempt."""
        raise NotImplementedError

    def restore(self, restore: str) -> RestoreRecord | None:
        """One running or remembered restore."""
        raise NotImplementedError

    def last_word(self, action: str) -> Announce | None:
        """The newest announcement about an action; `last` is set when it has ended."""
        raise NotImplementedError

    def story(self, action: str = "") -> tuple[Decision, ...]:
        """Why things were decided as they were, oldest first; all of it, or one action's."""
        raise NotImplementedError

    def validate(self) -> None:
        """Raise BugError when an invariant is broken; tests call it after every event."""
        raise NotImplementedError
