"""What a leader does by itself about when jobs are saved; see `schedule` for the rules."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from coordinator.core import events
from coordinator.core.attempt import Attempt
from coordinator.core.cluster import NOT_READY, Cluster
from coordinator.core.commands import AskCheckpoint, Command, KeepHistory
from coordinator.core.job_policy import JobHistory, JobPolicy
from coordinator.core.known import LOST, Job
from coordinator.core.model import AttemptRecord, Cut, RestoreRecord
from coordinator.core.running import Running
from coordinator.core.schedule import Explanation, Schedule, Sight

Note = Callable[..., None]


class Scheduling:
    """Looks at the jobs, asks for checkpoints that are due, and keeps count of what failed."""

    def __init__(self, cluster: Cluster, running: Running, note: Note) -> None:
        self._cluster = cluster
        self._running = running
        self._note = note
        self._schedule = Schedule()

    def adopt(
        self,
        policies: Iterable[JobPolicy],
        histories: Iterable[JobHistory],
        attempts: Iterable[AttemptRecord],
        restores: Iterable[RestoreRecord],
        now: float,
    ) -> None:
        """Take over what the store holds; of attempts and restores those that have ended."""
        for record in attempts:
            self._schedule.remember(record, now)
        for restore in restores:
            self._schedule.restore_ended(restore)
        self._schedule.adopt(policies, histories)

    def saved_before(self, name: str, ago_s: float, now: float) -> None:
        """How long ago the newest snapshot of a job was committed; the interval counts from there.

        Jobs that have none are counted from when this leader sees them run.
        """
        self._schedule.saved_before(name, ago_s, now)

    def changed(self, event: events.PolicyChanged) -> None:
        """An operator has set a policy."""
        self._schedule.set(event.policy)
        self._note(f"policy of job {event.policy.job}: {event.policy.when}")

    def next_wakeup(self, *, at_all: bool = False) -> float | None:
        """When to look again; `at_all`: also where no job has a policy."""
        return self._schedule.next_wakeup(at_all=at_all)

    def time_to_look(self, now: float) -> bool:
        """Whether it is; once a second, however many events come."""
        return self._schedule.time_to_look(now)

    def cut(self, name: str) -> Cut:
        """How the ranks of a job come to rest."""
        return self._schedule.cut(name)

    def usual_s(self, name: str) -> float:
        """How long a step of a job usually takes; 0 while not known."""
        return self._schedule.usual_s(name)

    def look(self, now: float) -> list[Command]:
        """Ask for what is due."""
        commands: list[Command] = []
        for job in self._cluster.jobs.values():
            reason = self._schedule.look(self._sight(job), now)
            if reason:
                self._note(f"a checkpoint of job {job.name} is due: {reason}")
                commands.append(AskCheckpoint(job.name, self._schedule.cut(job.name), reason))
        return commands

    def attempt_ended(self, record: AttemptRecord, now: float) -> list[Command]:
        """Count from here."""
        return self._keep(self._schedule.attempt_ended(record, now))

    def refused(self, event: events.CheckpointRequested, now: float) -> None:
        """What this asked for itself is tried again later."""
        if event.cause:
            self._schedule.refused(event.job, now)

    def restore_ended(self, record: RestoreRecord) -> None:
        """What it took is what the next one will take."""
        self._schedule.restore_ended(record)

    def over(self, name: str, cause: str = "") -> list[Command]:
        """The run of a job ends here: it is restored, or started anew. What has failed is counted.

        Called while the places of that run are still known. `cause`: why a recovery replaces it,
        which is a failure also where nothing of it is to be seen any more: a job that was hung, a
        node that has come back empty.
        """
        job = self._cluster.jobs.get(name)
        if job is None:
            return []
        lost, crashed = self._failed(job)
        crashed = crashed or (bool(cause) and not job.taken_away)
        return self._keep(self._schedule.interrupted(name, lost, crashed))

    def explain(self, name: str, policy: JobPolicy | None, now: float) -> Explanation:
        """The numbers behind the present interval of a job, or the one that `policy` leads to."""
        job = self._cluster.jobs.get(name)
        sight = self._sight(job) if job is not None else None
        return self._schedule.explain(name, policy, sight, now)

    def _keep(self, history: JobHistory | None) -> list[Command]:
        """Only of jobs that have a policy, which is what it is for."""
        if history is None or not self._schedule.policy(history.job).acts:
            return []
        return [KeepHistory(history)]

    def _failed(self, job: Job) -> tuple[Sequence[str], bool]:
        """Nodes of the present run that were lost, and whether a worker of it crashed.

        A node that was taken away has not failed, and who ended for that has not either.
        """
        lost, crashed = [], False
        for worker, at in sorted(job.places.items()):
            node = self._cluster.nodes.get(at)
            if node is None or node.state == LOST:
                lost.append(at)
                continue
            state = node.workers.get((job.name, worker))
            crashed = crashed or (
                state is not None and state.state == "exited" and state.exit_code != 0
            )
        return tuple(dict.fromkeys(lost)), crashed and not job.taken_away

    def _sight(self, job: Job) -> Sight:
        states = self._cluster.alive(job)
        actions = self._running.of_job(job.name)
        whole = bool(states) and len(states) == job.workers and not job.beginning
        whole = whole and not any(state.state in NOT_READY for state in states)
        boundaries = [rank.boundary for state in states for rank in state.ranks]
        steps = min(boundaries, default=-1) >= 0 or self._schedule.cut(job.name) is Cut.FREEZE
        return Sight(
            job.name,
            ready=whole and not actions and steps and all(s.state == "running" for s in states),
            busy=whole and any(isinstance(action, Attempt) for action in actions),
            step=max(boundaries, default=0),
            nodes=tuple(job.places[state.worker] for state in states),
            no_steps=any(rank.no_steps for state in states for rank in state.ranks),
        )
