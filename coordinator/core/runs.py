"""Which workers are a job: how a started one is taken in, and how a new run of a job begins.

A worker that was launched has no incarnation. It joins the present run where that lacks it; where
that run is over, or lost the worker of its number, a new run begins: the incarnation is raised in
the store first, then everyone of the new run is told, and whoever returns from an older one is
fenced. A place that a living worker holds is given to nobody else.

The same for what a failed restore has left alone: it becomes the job again, in the incarnation
that the restore had raised the job to.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import islice

from coordinator.core.cluster import FRESH, NOT_ALIVE, Cluster
from coordinator.core.commands import (
    AdmitWorker,
    BeginRun,
    Command,
    DeferWorker,
    FenceWorkers,
)
from coordinator.core.events import RunBegun, RunRefused
from coordinator.core.known import Job
from coordinator.core.model import JobRecord, WorkerState
from coordinator.core.policy import Policy
from coordinator.core.returning import Restore

Note = Callable[[str], None]


class Runs:
    """Decides on workers that are not of the present incarnation."""

    def __init__(self, cluster: Cluster, policy: Policy, note: Note) -> None:
        self._cluster = cluster
        self._policy = policy
        self._note = note

    def consider(
        self, node: str, name: str, worker: int, now: float, *, busy: str
    ) -> list[Command]:
        """A reported worker: take it in, begin a run with it, refuse it, or let it wait.

        `busy`: the attempt or restore that has the job; whatever is not refused waits for its end.
        Asked again with every report of the worker, so that nothing has to be remembered.
        """
        job = self._cluster.jobs[name]
        state = self._cluster.nodes[node].workers.get((name, worker))
        if state is None or state.state in NOT_ALIVE or job.floor > state.incarnation > FRESH:
            return []
        if state.incarnation not in (FRESH, job.incarnation):
            return [] if busy or job.beginning else self._take_back(job, node, state)
        if state.incarnation != FRESH:
            return []
        why = self._refusal(job, node, state)
        if why:
            return self._fence(job, node, state, why)
        job.fresh[worker] = node
        job.waiting = self._wait(job, now, busy)
        if job.waiting:
            return self._defer(job, node, worker)
        if self._joins(job, worker):
            job.is_whole()  # or may be so again
            return [self._admit(job, node, state)]
        return self._begin(job, state)

    # -- started workers -----------------------------------------------------------------------

    def _refusal(self, job: Job, node: str, state: WorkerState) -> str:
        """Why this worker cannot be the job, whatever comes; or nothing."""
        name = f"worker {state.worker} of job {job.name}"
        if not 0 <= state.worker < state.workers:
            return f"job {job.name} has no worker {state.worker}, only 0..{state.workers - 1}"
        if self._cluster.standing(job, state.worker) == "alive":
            at = job.places[state.worker]
            return (
                f"{name} already runs on {at} (incarnation {job.incarnation}); end it there first"
            )
        other = self._cluster.fresh_at(job, state.worker)
        if other is not None and other[0] != node:
            return f"{name} is being started on {other[0]} already"
        size = state.workers
        if state.workers != job.workers and self._cluster.alive(job):
            size = job.workers
        for first in list(islice(job.fresh, 2)):  # all that wait say the same
            waits = self._cluster.fresh_at(job, first)
            size = waits[1].workers if waits is not None else size
        if state.workers != size:
            return f"{name} says that the job has {state.workers} workers; it has {size}"
        return ""

    def _defer(self, job: Job, node: str, worker: int) -> list[Command]:
        """Tell the shim what its worker waits for, once for each reason and stream.

        Not what takes a moment: every start of a job waits for its record.
        """
        told = (node, self._cluster.nodes[node].session, job.waiting)
        if job.beginning or job.told.get(worker) == told:
            return []
        job.told[worker] = told
        self._note(f"worker {worker} of job {job.name} on {node} waits: {job.waiting}")
        return [DeferWorker(node, job.name, worker, job.waiting)]

    def _wait(self, job: Job, now: float, busy: str) -> str:
        """What a started worker has to wait for, if anything."""
        if busy:
            return f"{busy} has the job, and who takes part in it was settled when it began"
        if job.beginning:
            return "the new run is being recorded"
        if now < job.sure_at:
            return "this coordinator is new, and older workers of the job may still attach to it"
        return job.waiting if now < job.try_at else ""

    def _joins(self, job: Job, worker: int) -> bool:
        """Whether the present run goes on and lacks just this worker.

        A place whose worker is lost, or of which this leader does not know whether it was held,
        is not simply given away: the old worker may return, and only a higher incarnation tells
        the two apart.
        """
        standing = self._cluster.standing(job, worker)
        if job.incarnation == FRESH or standing == "lost" or (standing == "none" and not job.whole):
            return False
        return any(self._cluster.standing(job, w) in ("alive", "lost") for w in job.places)

    def _admit(self, job: Job, node: str, state: WorkerState) -> Command:
        self._cluster.admit(job, node, state)
        self._note(
            f"worker {state.worker} on {node} is job {job.name} in incarnation {job.incarnation}"
        )
        return AdmitWorker(node, job.name, state.worker, job.incarnation)

    # -- a new run -----------------------------------------------------------------------------

    def _begin(self, job: Job, state: WorkerState) -> list[Command]:
        job.beginning = True
        job.waiting = "the new run is being recorded"
        record = JobRecord(job.name, state.workers, 0, job.incarnation + 1, job.latest)
        self._note(f"job {job.name} is started anew, with {state.workers} workers")
        return [BeginRun(record, job.incarnation)]

    def begun(self, event: RunBegun) -> list[Command]:
        """The new incarnation is recorded: tell everyone who is of the run, fence the others."""
        job = self._cluster.jobs[event.record.job]
        floor = job.floor
        job.beginning = False
        self._cluster.raise_incarnation(job.name, event.record.incarnation)
        job.whole, job.sure_at = True, 0.0
        job.workers, job.world_size = event.record.workers, 0
        commands: list[Command] = []
        for worker in list(job.fresh):
            waits = self._cluster.fresh_at(job, worker)
            if waits is not None and waits[1].workers == event.record.workers:
                commands.append(self._admit(job, *waits))
        for (node, _), state in self._cluster.of_job(job.name).items():
            if FRESH < state.incarnation < job.incarnation:
                fits = floor <= state.incarnation and state.workers == event.record.workers
                commands += self._take_back(job, node, state, fits=fits)
        return commands

    def refused(self, event: RunRefused, now: float) -> None:
        """The store did not record the run: a report of its workers tries again in a while."""
        job = self._cluster.jobs[event.job]
        job.beginning = False
        job.try_at = now + self._policy.admit_s
        job.waiting = f"the new run could not be recorded: {event.failure.what}"
        self._note(f"{job.waiting} (job {job.name})")

    # -- what a restore leaves ------------------------------------------------------------------

    def spare(self, restore: Restore) -> None:
        """The job that a restore is to replace lives on until something of it is cleared away."""
        job = self._cluster.jobs.get(restore.job)
        if job is not None and job.incarnation == restore.incarnation:
            job.floor = job.incarnation if restore.cleared else restore.old_incarnation
            if restore.adopted and not restore.released:
                job.base = min(job.base, restore.run_from)

    def restored(self, name: str) -> None:
        """A restore is through: the job is what it brought back, and nothing else."""
        job = self._cluster.jobs[name]
        job.floor, job.whole, job.sure_at = job.incarnation, True, 0.0
        job.base = job.incarnation
        job.is_whole()

    def given_up(
        self,
        name: str,
        incarnation: int,
        *,
        cleared: bool = False,
    ) -> list[Command]:
        """A restore has failed: the job goes on as it was if nothing of it was cleared away.

        Otherwise nothing that lives is the job: neither the old workers whose peers were killed
        nor the restored ones whose peers never came. Who of them is gone already has not been
        reported yet, so all are fenced.
        """
        job = self._cluster.jobs.get(name)
        if job is None or job.incarnation != incarnation:
            return []
        commands: list[Command] = []
        if cleared:
            job.floor = job.incarnation + 1
            job.places = {}
        for (node, _), state in self._cluster.of_job(name).items():
            if state.incarnation == FRESH:
                continue
            if state.incarnation < job.floor:
                why = f"the restore that was to replace it as incarnation {job.incarnation} failed"
                commands += self._fence(job, node, state, why)
            elif state.incarnation < job.incarnation:
                commands += self._take_back(job, node, state)
        return commands

    def _take_back(
        self, job: Job, node: str, state: WorkerState, *, fits: bool = True
    ) -> list[Command]:
        """An older worker of a job goes on as the job, unless another one has its place."""
        standing = self._cluster.standing(job, state.worker)
        if fits and standing in ("none", "over"):
            return [self._admit(job, node, state)]
        now_at = job.places.get(state.worker, "no node")
        why = (
            f"worker {state.worker} of job {job.name} is of incarnation {state.incarnation}, and "
            f"the job goes on as incarnation {job.incarnation}, with that worker on {now_at}"
        )
        return self._fence(job, node, state, why)

    def _fence(self, job: Job, node: str, state: WorkerState, why: str) -> list[Command]:
        job.fresh = {w: at for w, at in job.fresh.items() if (w, at) != (state.worker, node)}
        condemned = self._cluster.nodes[node].condemned
        key = (job.name, state.worker)
        if key in condemned:
            return []
        condemned.add(key)
        self._note(f"{node} is fenced: {why}")
        return [FenceWorkers(node, why, (state,))]
