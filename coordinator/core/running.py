"""The attempts and restores of a leader: those that run, by id and by job, and those that ended."""

from __future__ import annotations

from collections.abc import Iterable

from coordinator.core.attempt import Attempt
from coordinator.core.commands import Announce, Command
from coordinator.core.errors import BugError
from coordinator.core.model import AttemptRecord, RestoreRecord
from coordinator.core.returning import Restore

AnyAction = Attempt | Restore
AnyRecord = AttemptRecord | RestoreRecord


class Running:
    """Actions by id; an ended one leaves its record and its last words, the oldest forgotten."""

    def __init__(self, ended_limit: int) -> None:
        self._limit = ended_limit
        self._running: dict[str, AnyAction] = {}
        self._by_job: dict[str, dict[str, AnyAction]] = {}
        self._ended: dict[str, AnyRecord] = {}  # oldest first
        self._words: dict[str, Announce] = {}

    def __contains__(self, name: str) -> bool:
        return name in self._running

    def get(self, name: str) -> AnyAction | None:
        """A running action."""
        return self._running.get(name)

    def ended(self, name: str) -> AnyRecord | None:
        """The record of an action that has ended and is still remembered."""
        return self._ended.get(name)

    def all(self) -> list[AnyAction]:
        """All running actions, oldest first; the list stays as it is when one of them ends."""
        return list(self._running.values())

    def of_job(self, job: str) -> list[AnyAction]:
        """Running actions of a job: one, but for those adopted from an earlier leader."""
        return list(self._by_job.get(job, {}).values())

    def first_by_job(self) -> dict[str, AnyAction]:
        """The action that has each busy job."""
        return {job: next(iter(found.values())) for job, found in self._by_job.items()}

    def record(self, name: str) -> AnyRecord | None:
        """A running or remembered action as etcd keeps it."""
        action = self._running.get(name)
        return action.record() if action else self._ended.get(name)

    def records(self) -> Iterable[AnyRecord]:
        """All of them, newest last."""
        yield from self._ended.values()
        yield from (action.record() for action in self._running.values())

    def word(self, name: str) -> Announce | None:
        """The newest announcement about an action."""
        return self._words.get(name)

    def add(self, action: AnyAction) -> None:
        """An action begins."""
        self._running[action.id] = action
        self._by_job.setdefault(action.job, {})[action.id] = action

    def listen(self, commands: Iterable[Command]) -> None:
        """Keep the newest announcement about each action."""
        for command in commands:
            if isinstance(command, Announce):
                self._words[command.action] = command

    def end(self, action: AnyAction) -> None:
        """An action has ended: keep its record in its place."""
        self._running.pop(action.id)
        of_job = self._by_job[action.job]
        of_job.pop(action.id)
        if not of_job:
            self._by_job.pop(action.job)
        self.remember(action.id, action.record())

    def remember(self, name: str, record: AnyRecord) -> None:
        """Keep the record of an action that has ended."""
        self._ended[name] = record
        while len(self._ended) > self._limit:
            oldest = next(iter(self._ended))
            self._ended.pop(oldest)
            self._words.pop(oldest, None)

    def next_wakeup(self) -> float | None:
        """The nearest deadline of all."""
        wakeups = (action.next_wakeup() for action in self._running.values())
        return min((w for w in wakeups if w is not None), default=None)

    def validate(self) -> None:
        """Raise BugError when an action breaks a rule, or two of this leader have one job."""
        for action in self._running.values():
            action.validate()
            if action.ended:
                raise BugError(f"{action.id} has ended and is still running")
        for job, found in self._by_job.items():
            own = [a.id for a in found.values() if not a.adopted]
            if len(own) > 1 or (own and len(found) > 1):
                raise BugError(f"{sorted(found)} all have job {job}")
