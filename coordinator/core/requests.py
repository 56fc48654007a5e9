"""What operators ask for, and leaders themselves: admitted, or refused with the reason."""

from __future__ import annotations

from collections.abc import Collection

from coordinator.core import drain_events, events
from coordinator.core.admission import admit_attempt, admit_restore
from coordinator.core.arrivals import Arrivals, kind_of
from coordinator.core.attempt import Attempt
from coordinator.core.commands import Command, Refuse
from coordinator.core.errors import AllstopError, Busy, Where
from coordinator.core.failures import failure_of
from coordinator.core.pace import Pace
from coordinator.core.running import AnyAction


class Requests(Arrivals):
    """The part of `Control` that meets requests."""

    _pace: Pace

    def _checkpoint_requested(self, event: events.CheckpointRequested) -> list[Command]:
        if self._known(event.attempt):
            return []
        try:
            self._refuse_busy(event.job)
            # a notice is told again by whoever told it: what it is judged by does not wear out
            pace = self._pace.copy() if event.notice else self._pace
            attempt = admit_attempt(self._cluster, pace, event, self.epoch, self.policy, self._now)
            attempt.base = self._keeper.base(event.job, self._stores_of(attempt))
            attempt.suspicion = self._standing.suspicion
        except AllstopError as error:
            told = self._standing.checkpoint_refused(event, error, self._now)
            return told + self._refuse(event.attempt, error.at(job=event.job))
        self._running.add(attempt)
        return self._after(attempt, attempt.begin(self._now))

    def _restore_requested(self, event: events.RestoreRequested) -> list[Command]:
        if self._known(event.restore):
            return []
        try:
            self._refuse_busy(event.job)
            self._keeper.require_kept(event.job, event.snapshot.snapshot)
            made = admit_restore(self._cluster, event, self.epoch, self.policy, self._now)
        except AllstopError as error:
            told = self._standing.restore_refused(event, error, self._now)
            return told + self._refuse(event.restore, error.at(job=event.job))
        if event.snapshot.suspect and not made.plan.cold:
            made.note(f"the snapshot is suspect: {event.snapshot.suspect}")
        counted = self._standing.restore_admitted(event, self._now)
        self._running.add(made)
        return counted + self._after(made, made.begin(self._now))

    def _stores_of(self, attempt: Attempt) -> Collection[str]:
        nodes = self._cluster.nodes
        return {nodes[each.node].facts.store for each in attempt.members.values()}

    def _cleaning_requested(
        self, event: events.DeletionRequested | events.CollectionRequested
    ) -> list[Command]:
        if self._keeper.knows(event.cleaning):
            self._note("that request was taken before", True, event.cleaning)
            return []
        try:
            if isinstance(event, events.DeletionRequested):
                return self._keeper.delete(event, self._now)
            return self._keeper.collect(event, self._now)
        except AllstopError as error:
            return self._refuse(event.cleaning, error.at(job=event.job))

    def _drain_requested(self, event: drain_events.DrainRequested) -> list[Command]:
        try:
            return self._standing.drain(event, self._now)
        except AllstopError as error:
            told = self._standing.drain_refused(event, error, self._now)
            return told + self._refuse(event.request, error.at(node=event.node))

    def _undrain_requested(self, event: drain_events.UndrainRequested) -> list[Command]:
        try:
            return self._standing.undrain(event)
        except AllstopError as error:
            return self._refuse(event.request, error.at(node=event.node))

    def _known(self, action: str) -> bool:
        if self._running.record(action) is not None:
            self._note("that request was taken before", True, action)
            return True
        return False

    def _refuse_busy(self, job: str) -> None:
        for action in self._running.of_job(job):
            raise Busy(
                f"{kind_of(action)} {action.id} has the job and is {action.state}",
                where=Where(job=job),
                advice=f"wait for it, or `allstop abort {action.id}`",
            )
        known = self._cluster.jobs.get(job)
        if known is not None and known.beginning:
            raise Busy(
                "a new run of the job is just being recorded",
                where=Where(job=job),
                advice="try again in a moment",
            )

    def _refuse(self, action: str, error: AllstopError) -> list[Command]:
        self._note(f"refused: {error.what}", False, action)
        return [Refuse(action, failure_of(error))]

    # -- the other half ------------------------------------------------------------------------

    def _after(self, action: AnyAction, commands: list[Command]) -> list[Command]:
        """Keep what was said, and put the action away when it has ended."""
        raise NotImplementedError
