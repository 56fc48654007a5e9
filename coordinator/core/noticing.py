"""What shims were told about their nodes: a node is about to go, or its jobs are to be saved.

    DRAIN       the node is emptied, see `draining`; where it cannot be, its jobs are saved at least
    CHECKPOINT  its jobs are saved, and go on
    STOP        its jobs are saved and stopped; one that something has is left to the next telling
    END         its shim ends now: the runs of its jobs were ended on purpose, nothing has failed

The same notice again changes nothing. What asks for more than can be done is refused at once, and
the shim is told why.
"""

from __future__ import annotations

from collections.abc import Callable

from coordinator.core import events
from coordinator.core.cluster import Cluster
from coordinator.core.commands import AskCheckpoint, AskDrain, Command, RefuseNotice
from coordinator.core.drain_events import DrainRequested, NoticeGiven, NoticeKind
from coordinator.core.draining import Draining
from coordinator.core.errors import AllstopError, Busy
from coordinator.core.model import Cut
from coordinator.core.policy import Policy

K = NoticeKind


class Noticing:
    """Notices of all nodes; keeps nothing of its own."""

    def __init__(
        self,
        cluster: Cluster,
        draining: Draining,
        note: Callable[[str], None],
        cut: Callable[[str], Cut],
        policy: Policy,
    ) -> None:
        """`cut`: how a job's ranks come to rest."""
        self._cluster = cluster
        self._draining = draining
        self._note = note
        self._cut = cut
        self._policy = policy

    def given(self, event: NoticeGiven, now: float) -> list[Command]:
        """A shim says what it was told."""
        if event.kind is K.END:
            for told in self._cluster.taken_away(event.node, event.why):
                self._note(told)
            return []
        if event.kind is not K.DRAIN:
            return self._save(event.node, event.why, event.deadline_s, stop=event.kind is K.STOP)
        if self._draining.on_its_way(event.node):
            return self._draining.hurry(event.node, event.deadline_s, now)
        self._note(f"{event.node} is about to go, in {event.deadline_s:.0f} s: {event.why}")
        return [AskDrain(event.node, event.deadline_s, event.why)]

    def drain_refused(self, event: DrainRequested, error: AllstopError) -> list[Command]:
        """It cannot be emptied: where it goes all the same, what is on it is saved at least."""
        if not event.notice or event.node not in self._cluster.nodes:
            return []
        saved = self._save(event.node, f"{event.node} goes: {event.why}", event.deadline_s)
        return [RefuseNotice(event.node, K.DRAIN, error.what), *saved]

    def checkpoint_refused(
        self, event: events.CheckpointRequested, error: AllstopError
    ) -> list[Command]:
        """One that a notice asked for; a job that something else has is asked for again."""
        if not event.notice or isinstance(error, Busy):
            return []
        kind = K.STOP if event.stop else K.CHECKPOINT
        return [RefuseNotice(event.notice, kind, f"job {event.job}: {error.what}")]

    def _save(self, node: str, why: str, deadline_s: float, *, stop: bool = False) -> list[Command]:
        sights = ((job, self._draining.sight(job, node)) for job in self._cluster.jobs.values())
        plenty = deadline_s >= self._policy.attempt_s
        return [
            AskCheckpoint(
                job.name,
                self._cut(job.name),
                why,
                stop=stop,
                deadline_s=0.0 if plenty else deadline_s,
                notice=node,
            )
            for job, sight in sights
            if sight.placed and not sight.busy
        ]
