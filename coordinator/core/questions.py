"""What a leader's core can be asked; nothing here changes anything."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from coordinator.core.admission import why_unseen
from coordinator.core.cluster import Cluster
from coordinator.core.commands import Announce
from coordinator.core.drain_records import DrainRecord
from coordinator.core.errors import BugError
from coordinator.core.job_policy import JobPolicy, JobRecovery
from coordinator.core.journal import Decision, Journal
from coordinator.core.keeper import Keeper
from coordinator.core.kept import Retention
from coordinator.core.logs import Whereabouts, whereabouts
from coordinator.core.model import (
    AttemptRecord,
    JobRecord,
    NodeFacts,
    OldAddresses,
    RestoreRecord,
    Snapshot,
)
from coordinator.core.planner import Planned
from coordinator.core.retention import Going
from coordinator.core.running import AnyAction, Running
from coordinator.core.schedule import Explanation
from coordinator.core.standing_orders import StandingOrders
from coordinator.core.starting import plan_or_start
from coordinator.core.view import JobView, NodeView, job_views, node_views


class Questions:
    """The reading half of `Control`."""

    _cluster: Cluster
    _journal: Journal
    _running: Running
    _keeper: Keeper
    _now: float
    _problems: dict[str, list[str]]
    _standing: StandingOrders
    epoch: int

    def plan(
        self,
        snapshot: Snapshot,
        files: Sequence[NodeFacts] = (),
        *,
        explain: bool = False,
        cold_start: bool = False,
        old_addresses: OldAddresses = OldAddresses.REFUSE,
    ) -> Planned:
        """Say where a snapshot would go now, or why nowhere, without doing it.

        Options as of a restore; `explain`: name the nodes that fit and are not taken, too.
        """
        planned, _ = plan_or_start(
            snapshot,
            self._cluster.candidates(snapshot.job, files),
            cold_start=cold_start,
            old_addresses=old_addresses,
            explain=explain,
        )
        return planned

    def unseen(self, name: str) -> str:
        """Why a job's run may be taking steps out of sight, so that its restore is refused."""
        found = self._cluster.jobs.get(name)
        return why_unseen(self._cluster, found) if found is not None else ""

    def job(self, name: str) -> JobRecord | None:
        """One job as etcd keeps it, without looking at its workers."""
        found = self._cluster.jobs.get(name)
        return found.record() if found is not None else None

    def under_way(self) -> tuple[str, ...]:
        """Ids of all attempts and restores that have not ended, oldest first."""
        return tuple(action.id for action in self._running.all())

    def jobs(self) -> tuple[JobView, ...]:
        """All jobs, by name."""
        found = {
            job: (*self._problems.get(job, ()), *self._keeper.troubles(job))
            for job in (*self._cluster.jobs, *self._problems)
        }
        problems = {job: lines for job, lines in found.items() if lines}
        return job_views(
            self._cluster, self._running.first_by_job(), problems, self._standing.stands
        )

    def deletions(self, job: str) -> tuple[str, ...]:
        """What stands in the way of deletions of a job's snapshots."""
        return self._keeper.troubles(job)

    def damage(self, job: str, snapshot: str) -> str:
        """What was found broken in a snapshot; empty: nothing is known."""
        return self._keeper.damage(job, snapshot)

    def suspicion(self, job: str, snapshot: str) -> str:
        """Why what is in a snapshot may be wrong; empty: nothing is known."""
        return self._keeper.suspicion(job, snapshot)

    def seeing(self, store: str) -> tuple[str, ...]:
        """Nodes in reach that see an image store, by name."""
        return self._keeper.all_seeing(store)

    def retention(self, job: str) -> Retention | None:
        """Which snapshots of a job stay; None: all."""
        return self._keeper.policy(job)

    def going(self, job: str, policy: Retention | None) -> tuple[Going, ...]:
        """What these rules would let go of now."""
        return self._keeper.going(job, policy, self._now)

    def nodes(self) -> tuple[NodeView, ...]:
        """All nodes, by name, those lost and left included."""
        return node_views(self._cluster, self._standing.drains(), self._standing.health())

    def drain(self, node: str) -> DrainRecord | None:
        """Where the drain of a node stands; None: it takes workers."""
        return self._standing.drains().get(node)

    def whereabouts(self, job: str) -> tuple[Whereabouts, ...]:
        """Where each worker of a job is, by number; raises NotFound for no such job."""
        return whereabouts(self._cluster, job)

    def attempts(self) -> tuple[AttemptRecord, ...]:
        """Running and remembered attempts, newest last."""
        return tuple(r for r in self._running.records() if isinstance(r, AttemptRecord))

    def restores(self) -> tuple[RestoreRecord, ...]:
        """Running and remembered restores, newest last."""
        return tuple(r for r in self._running.records() if isinstance(r, RestoreRecord))

    def attempt(self, attempt: str) -> AttemptRecord | None:
        """One running or remembered attempt."""
        found = self._running.record(attempt)
        return found if isinstance(found, AttemptRecord) else None

    def restore(self, restore: str) -> RestoreRecord | None:
        """One running or remembered restore."""
        found = self._running.record(restore)
        return found if isinstance(found, RestoreRecord) else None

    def recovery(self, job: str) -> JobRecovery:
        """Where the recovery of a job stands, and its story."""
        return self._standing.recovery(job)

    def explain_policy(self, job: str, policy: JobPolicy | None = None) -> Explanation:
        """When the next checkpoint of a job is due by itself, and why; or would be, by `policy`."""
        return self._standing.explain(job, policy, self._now)

    def last_word(self, action: str) -> Announce | None:
        """The newest announcement about an action; `last` is set when it has ended."""
        return self._running.word(action) or self._keeper.word(action)

    def story(self, action: str = "") -> tuple[Decision, ...]:
        """Why things were decided as they were, oldest first; all of it, or one action's."""
        return self._journal.story(action)

    def validate(self) -> None:
        """Raise BugError when an invariant is broken; tests call it after every event."""
        self._running.validate()
        for action in self._running.all():
            if action.epoch != self.epoch:
                raise BugError(f"{action.id} is of epoch {action.epoch}, not of {self.epoch}")
            for waiting in action.rounds.values():
                self._validate_round(action, waiting.awaited.values())
        self._cluster.validate()
        self._keeper.validate()

    def _validate_round(self, action: AnyAction, awaited: Iterable[Any]) -> None:
        for member in awaited:
            if not self._cluster.attached(member.node) and not action.adopted:
                raise BugError(f"{action.id} awaits {member}, which is out of reach")
