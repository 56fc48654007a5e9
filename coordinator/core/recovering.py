"""What a leader does by itself for jobs whose runs have ended; see `recovery` for the rules."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from coordinator.core import events
from coordinator.core.blame import blame
from coordinator.core.cluster import FRESH, Cluster
from coordinator.core.commands import AskRestore, Command, FenceWorkers, KeepRecovery, StayOn
from coordinator.core.errors import AllstopError
from coordinator.core.failures import failure_of
from coordinator.core.job_policy import JobPolicy, JobRecovery, RecoveryState
from coordinator.core.known import ATTACHED, Job
from coordinator.core.model import AttemptRecord, AttemptState, RestoreRecord, WorkerState
from coordinator.core.recovery import Recovery
from coordinator.core.retrying import Ask
from coordinator.core.running import Running
from coordinator.core.standing import Standings

UNDER_WAY = frozenset({RecoveryState.RECOVERING, RecoveryState.WAITING})
STAY_S = 120.0  # longer than it takes for another leader to say it
STAY_AGAIN_S = 20.0


class Recovering:
    """Recoveries by job; the caller looks about once a second."""

    def __init__(
        self,
        cluster: Cluster,
        running: Running,
        note: Callable[[str], None],
        usual_s: Callable[[str], float],
        hung_s: float,
    ) -> None:
        """`usual_s`: of a step of a job; 0 while not known. `hung_s`: less is no hang."""
        self._cluster = cluster
        self._running = running
        self._note = note
        self._jobs: dict[str, Recovery] = {}
        self._told_to_stay: dict[str, float] = {}  # by job, until when that is enough
        self._standings = Standings(cluster, running, usual_s)
        self._hung_s = hung_s
        self._unix_less_now = 0.0

    def adopt(
        self,
        policies: Iterable[JobPolicy],
        records: Iterable[JobRecovery],
        unix_less_now: float,
        now: float,
    ) -> None:
        """Take over what the store holds; `unix_less_now`: the wall clock's lead over ours."""
        self._unix_less_now = unix_less_now
        kept = {record.job: record for record in records}
        for policy in policies:
            record = kept.get(policy.job, JobRecovery(policy.job))
            self._jobs[policy.job] = self._made(record, policy, now)
        for job, record in kept.items():
            if job not in self._jobs:  # of a job without a policy there is a story at most
                self._jobs[job] = self._made(record, JobPolicy(job), now)

    def _made(self, record: JobRecovery, policy: JobPolicy, now: float) -> Recovery:
        waited_s = record.waited_s if record.state is RecoveryState.WAITING else 0.0
        return Recovery(
            record,
            policy,
            hung_s=self._hung_s,
            began=now - waited_s,
            unix_less_now=self._unix_less_now,
        )

    def changed(self, policy: JobPolicy, now: float) -> list[Command]:
        """An operator has set a policy, perhaps in the middle of a recovery, which goes on."""
        if policy.job not in self._jobs:
            self._jobs[policy.job] = self._made(JobRecovery(policy.job), policy, now)
        known = self._jobs[policy.job]
        known.set(policy, now)
        return self._kept(known)

    def stands(self, job: str) -> str:
        """What there is to say of a job that is not brought back, or not yet; else nothing."""
        known = self._active(job)
        if known is None or known.record.state in (RecoveryState.WATCHING, RecoveryState.FINISHED):
            return ""
        story = known.record.story
        unseen = not story or known.record.state is RecoveryState.UNSEEN
        return known.stands or ("" if unseen else story[-1].text)

    def record(self, job: str) -> JobRecovery:
        """Where the recovery of a job stands."""
        known = self._jobs.get(job)
        return known.record if known is not None else JobRecovery(job)

    # -- what is told ----------------------------------------------------------------------------

    def worker_exited(self, event: events.WorkerExited) -> None:
        """A worker has ended; `event` has the incarnation that it is known by."""
        self._standings.worker_exited(event)

    def run_begins(self, job: str) -> None:
        """A job is started anew by whoever runs it."""
        if job in self._jobs:
            self._jobs[job].started_anew()

    def fenced(self, command: FenceWorkers, now: float) -> list[Command]:
        """Workers of an older run are ended on a node that came back, or are refused."""
        commands: list[Command] = []
        for job in dict.fromkeys(state.job for state in command.workers):
            known = self._active(job)
            if known is not None:
                known.saw(f"{command.node} is fenced: {command.reason}", now)
                commands += self._kept(known)
        return commands

    def attempt_ended(self, record: AttemptRecord, now: float) -> list[Command]:
        """A snapshot is what later recoveries go back to; a stop is no failure."""
        known = self._jobs.get(record.job)
        if known is None or record.state is not AttemptState.COMMITTED:
            return []
        known.committed(record.attempt, record.target)
        if record.stop:
            known.stopped(f"it was stopped by {record.attempt}", now)
        return self._kept(known)

    def restore_begun(self, event: events.RestoreRequested, now: float) -> list[Command]:
        """A restore of the job is on its way."""
        known = self._jobs.get(event.job)
        if known is None or not event.cause or event.drain:
            return []
        known.restore_begun(event.snapshot.snapshot, now)
        return self._kept(known)

    def restore_refused(
        self, event: events.RestoreRequested, error: AllstopError, now: float
    ) -> list[Command]:
        """What this asked for itself was refused."""
        known = self._active(event.job)
        if known is None or not event.cause or event.drain:
            return []
        known.refused(failure_of(error), now)
        return self._carried(known, known.moves)

    def left_stopped(self, job: str, why: str, now: float) -> list[Command]:
        """A drain has stopped the job and could not put it back: that is a failure like another."""
        known = self._active(job)
        if known is None:
            return []
        known.left_stopped(why, now)
        return self._carried(known, known.moves)

    def unready(self, event: events.RestoreUnready, now: float) -> list[Command]:
        """What a restore needs could not even be read."""
        known = self._active(event.job)
        if known is None:
            return []
        known.refused(event.failure, now)
        return self._carried(known, known.moves)

    def restore_ended(self, record: RestoreRecord, now: float) -> list[Command]:
        """Whoever asked for it, and whatever the policy says meanwhile."""
        known = self._jobs.get(record.job)
        if known is None:
            return []
        known.restored(record, now, blame(record.failure, self._cluster.attached))
        return self._carried(known, known.moves)

    def look(self, now: float) -> list[Command]:
        """See how every job stands, and do what follows."""
        commands: list[Command] = []
        for name, known in self._jobs.items():
            job = self._cluster.jobs.get(name)
            if job is None or not known.acts:
                continue
            standing = self._standings.look(job, self._ended_before(job), now)
            known.ended(standing.ended, job.incarnation)
            if not standing.whole and (now < job.sure_at or job.beginning):
                commands += self._kept(known)
                continue  # who is not here may be on its way
            commands += self._carried(known, known.look(standing, now))
            commands += self._stays(known, now)
        return commands

    # -- what others ask -------------------------------------------------------------------------

    def policy(self, job: str) -> JobPolicy:
        """What is done when the job fails."""
        known = self._jobs.get(job)
        return known.policy if known is not None else JobPolicy(job)

    def tell(self, job: str, text: str, now: float) -> list[Command]:
        """Write a line into the story of a job, whatever its policy."""
        if job not in self._jobs:
            self._jobs[job] = self._made(JobRecovery(job), JobPolicy(job), now)
        self._jobs[job].saw(text, now)
        return self._kept(self._jobs[job])

    def condemned(self, job: str, why: str, now: float) -> list[Command]:
        """Have a job that runs restored, if it can be: what it computes from now on is nothing."""
        known, found = self._active(job), self._cluster.jobs.get(job)
        if known is None or found is None:
            return []
        known.moves = []
        standing = self._standings.look(found, self._ended_before(found), now)
        known.condemned(why, standing, now)
        return self._carried(known, known.moves)

    # -- pieces ----------------------------------------------------------------------------------

    def _active(self, job: str) -> Recovery | None:
        known = self._jobs.get(job)
        return known if known is not None and known.acts else None

    def _carried(self, known: Recovery, moves: Iterable[object]) -> list[Command]:
        commands: list[Command] = []
        for move in list(moves):
            if isinstance(move, Ask):
                name = known.record.job
                ask = AskRestore(
                    name, move.skip, move.cause, move.scratch, failed_on=move.failed_on
                )
                commands.append(ask)
            else:
                commands += self._ended(known.record.job)
        known.moves = []
        return commands + self._kept(known)

    def _stays(self, known: Recovery, now: float) -> list[Command]:
        """While a job is to be restored, no shim of a worker that has ended leaves."""
        job = known.record.job
        if known.record.state not in UNDER_WAY:
            self._told_to_stay.pop(job, None)
            return []
        if now < self._told_to_stay.get(job, now):
            return []
        self._told_to_stay[job] = now + STAY_AGAIN_S
        nodes = [name for name, node in self._cluster.nodes.items() if node.state == ATTACHED]
        return [StayOn(node, job, STAY_S) for node in nodes]

    def _kept(self, known: Recovery) -> list[Command]:
        if not known.changed:
            return []
        known.changed = False
        self._note(f"recovery of job {known.record.job}: {known.record.story[-1:]}")
        return [KeepRecovery(known.record)]

    def _ended(self, name: str) -> list[Command]:
        """Whatever of a job that is given up still lives is ended; not what is started anew."""
        by_node: dict[str, list[WorkerState]] = {}
        for (node, _), state in self._cluster.of_job(name).items():
            if state.incarnation != FRESH:
                by_node.setdefault(node, []).append(state)
        reason = "the job's recovery was given up"
        return [FenceWorkers(node, reason, tuple(states)) for node, states in by_node.items()]

    def _ended_before(self, job: Job) -> tuple[int, ...]:
        record = self._jobs[job.name].record
        return record.ended if record.ended_in == job.incarnation else ()
