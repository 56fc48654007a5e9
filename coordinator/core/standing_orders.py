"""What a leader does without being asked: checkpoints that are due, jobs that are brought back.

It only asks: what comes of it goes through admission like any operator's request.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from coordinator.core import drain_events, events, health_events
from coordinator.core.cluster import Cluster
from coordinator.core.commands import Command, FenceWorkers
from coordinator.core.drain_records import DrainRecord
from coordinator.core.draining import Draining, Means
from coordinator.core.errors import AllstopError
from coordinator.core.gpu_health import GpuHealth
from coordinator.core.health_rules import HealthRules
from coordinator.core.job_policy import JobHistory, JobPolicy, JobRecovery
from coordinator.core.model import AttemptRecord, RestoreRecord, RestoreState, WorkerRecord
from coordinator.core.noticing import Noticing
from coordinator.core.recovering import Recovering
from coordinator.core.running import Running
from coordinator.core.schedule import Explanation
from coordinator.core.scheduling import Scheduling


class StandingOrders:
    """Schedules and recoveries of all jobs, looked at about once a second."""

    def __init__(
        self,
        cluster: Cluster,
        running: Running,
        note: Callable[[str], None],
        means: Means,
        rules: HealthRules,
        suspect: Callable[[str, str], str],
    ) -> None:
        """`suspect`: why a snapshot of a job may be wrong, as far as that is known."""
        self._suspect = suspect
        self._origins: dict[str, str] = {}  # of jobs that were put back by themselves: from which
        self._scheduling = Scheduling(cluster, running, note)
        self._recovering = Recovering(
            cluster, running, note, self._scheduling.usual_s, means.policy.hung_s
        )
        self._draining = Draining(
            cluster, running, note, self._scheduling.cut, means, self._recovering.left_stopped
        )
        self._noticing = Noticing(cluster, self._draining, note, self._scheduling.cut, means.policy)
        self._health = GpuHealth(cluster, running, note, rules, self._recovering, self.drains)

    def adopt(
        self,
        policies: Sequence[JobPolicy],
        histories: Iterable[JobHistory],
        recoveries: Iterable[JobRecovery],
        drains: Iterable[DrainRecord],
        ended: Sequence[AttemptRecord | RestoreRecord],
        *,
        unix_s: float,
        now: float,
    ) -> None:
        """Take over what the store holds; `ended`: attempts and restores that have."""
        attempts = [each for each in ended if isinstance(each, AttemptRecord)]
        restores = [each for each in ended if isinstance(each, RestoreRecord)]
        for restore in restores:
            self._begins(restore)
        self._scheduling.adopt(policies, histories, attempts, restores, now)
        self._recovering.adopt(policies, recoveries, max(0.0, unix_s - now), now)
        self._draining.adopt(drains, attempts, max(0.0, unix_s - now), now)

    def saved_before(self, job: str, ago_s: float, now: float) -> None:
        """How long ago the newest snapshot of a job was committed."""
        self._scheduling.saved_before(job, ago_s, now)

    def look(self, now: float) -> list[Command]:
        """What is due by the clock alone, or by how the jobs stand."""
        if not self._scheduling.time_to_look(now):
            return []
        drained = self._draining.look(now)  # first: a job that is being moved is its business
        moved = drained + self._noticing.look(now) + self._health.look(now)
        return moved + self._scheduling.look(now) + self._recovering.look(now)

    def next_wakeup(self) -> float | None:
        """When to look again; None while nothing is to be done by itself."""
        return self._scheduling.next_wakeup(
            at_all=any(each.acts for each in (self._draining, self._noticing, self._health))
        )

    # -- what is told ----------------------------------------------------------------------------

    def policy_changed(self, event: events.PolicyChanged, now: float) -> list[Command]:
        """An operator has set a policy."""
        self._scheduling.changed(event)
        return self._recovering.changed(event.policy, now)

    def worker_exited(self, event: events.WorkerExited) -> None:
        """A worker has ended; `event` has the incarnation that it is known by."""
        self._recovering.worker_exited(event)

    def decided(self, commands: Iterable[Command], now: float) -> list[Command]:
        """What of it belongs to the stories of jobs."""
        fences = [each for each in commands if isinstance(each, FenceWorkers)]
        return [told for fence in fences for told in self._recovering.fenced(fence, now)]

    def checkpoint_refused(
        self, event: events.CheckpointRequested, error: AllstopError, now: float
    ) -> list[Command]:
        """Whoever asked for it."""
        if event.drain:
            return self._draining.checkpoint_refused(event, error, now)
        self._scheduling.refused(event, now)
        return self._noticing.checkpoint_refused(event, error, now)

    def attempt_ended(self, record: AttemptRecord, now: float) -> list[Command]:
        """Whoever asked for it."""
        counted = self._scheduling.attempt_ended(record, now)
        counted += self._recovering.attempt_ended(record, now)
        return counted + self._draining.attempt_ended(record, now)

    def restore_admitted(self, event: events.RestoreRequested, now: float) -> list[Command]:
        """A restore is about to begin; called while the places of the old run are still known."""
        cause = "" if event.drain else event.cause
        counted = self._scheduling.over(event.job, cause)
        return counted + self._recovering.restore_begun(event, now)

    def restore_refused(
        self, event: events.RestoreRequested, error: AllstopError, now: float
    ) -> list[Command]:
        """Whoever asked for it."""
        if event.drain:
            return self._draining.restore_refused(event, error, now)
        return self._recovering.restore_refused(event, error, now)

    def restore_unready(self, event: events.RestoreUnready, now: float) -> list[Command]:
        """What a restore needs could not even be read."""
        if event.drain:
            return self._draining.unready(event, now)
        return self._recovering.unready(event, now)

    def restore_ended(self, record: RestoreRecord, now: float) -> list[Command]:
        """Whoever asked for it."""
        self._begins(record)
        if record.state is RestoreState.RUNNING:
            self._scheduling.restore_ended(record)
        drained = self._draining.restore_ended(record, now)
        return drained + self._recovering.restore_ended(record, now)

    def run_begins(self, job: str) -> list[Command]:
        """A job is started anew; called while the places of the old run are still known."""
        self._origins.pop(job, None)
        self._recovering.run_begins(job)
        return self._scheduling.over(job)

    def _begins(self, record: RestoreRecord) -> None:
        """A run goes on from a snapshot. One that an operator has named has the operator's word."""
        if record.state is not RestoreState.RUNNING:
            return
        if record.cause and not record.cold:
            self._origins[record.job] = record.snapshot
        else:
            self._origins.pop(record.job, None)

    # -- drains ----------------------------------------------------------------------------------

    def drain(self, event: drain_events.DrainRequested, now: float) -> list[Command]:
        """Begin to empty a node; raises what refuses it."""
        begun = self._draining.requested(event, now)
        self._noticing.drain_begins(event)
        return begun

    def drain_refused(
        self, event: drain_events.DrainRequested, error: AllstopError, now: float
    ) -> list[Command]:
        """A node cannot be emptied."""
        settled = self._health.drain_refused(event, error, now)
        return [] if settled else self._noticing.drain_refused(event, error, now)

    def notice(self, event: drain_events.NoticeGiven, now: float) -> list[Command]:
        """A shim was told what is to become of its node."""
        return self._noticing.given(event, now)

    def undrain(self, event: drain_events.UndrainRequested) -> list[Command]:
        """The node takes workers again."""
        return self._draining.undrain(event)

    def drain_stored(self, event: drain_events.DrainStored) -> list[Command]:
        """A state of a drain is in the store."""
        return self._draining.stored(event)

    def drain_unstored(self, event: drain_events.DrainUnstored) -> list[Command]:
        """A state of a drain is not in the store."""
        return self._draining.unstored(event)

    def drain_unready(self, event: drain_events.DrainUnready) -> list[Command]:
        """A drain could not even be asked for."""
        return self._noticing.drain_unready(event)

    def drains(self) -> Mapping[str, DrainRecord]:
        """Where each drain stands, by node."""
        return self._draining.records()

    # -- health of GPUs --------------------------------------------------------------------------

    def gpu_trouble(self, event: health_events.GpuTroubleTold, now: float) -> list[Command]:
        """A shim tells what trouble its GPUs have."""
        return self._health.told(event, now)

    def other_shim(self, node: str) -> None:
        """Another shim process speaks for a node."""
        self._health.forget(node)

    def suspicion(self, records: Iterable[WorkerRecord]) -> str:
        """Why what was saved by these workers may be wrong; empty: nothing is known.

        A run that was put back by itself from a suspect snapshot has that one's state.
        """
        known = tuple(records)
        if why := self._health.suspicion(known):
            return why
        job = known[0].job if known else ""
        origin = self._origins.get(job, "")
        if origin and (why := self._suspect(job, origin)):
            return f"goes on from {origin}: {why.removeprefix(f'goes on from {origin}: ')}"
        return ""

    def health(self) -> Mapping[str, tuple[str, ...]]:
        """Trouble of each node's GPUs, and what was decided about it."""
        return self._health.lines()

    # -- questions -------------------------------------------------------------------------------

    def recovery(self, job: str) -> JobRecovery:
        """Where the recovery of a job stands, and its story."""
        return self._recovering.record(job)

    def stands(self, job: str) -> str:
        """Why a job is not brought back, or not yet; empty: there is nothing to say."""
        return self._recovering.stands(job)

    def explain(self, job: str, policy: JobPolicy | None, now: float) -> Explanation:
        """When the next checkpoint of a job is due, and why; or would be, by `policy`."""
        return self._scheduling.explain(job, policy, now)
