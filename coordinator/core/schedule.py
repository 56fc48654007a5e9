"""When each job is to be saved by itself, and what of its failures has been seen.

Looked at about once a second (`LOOK_S`); the caller says how the job stands. A checkpoint is due
an interval after the last one ended, or after the job began to run; where the interval is by
formula, after the last one's cut, since what comes later is done again. One that failed or was
refused is tried again sooner, each time a little later than before. All of them together, those
that were given up too, take no more than the budget of the time that the job was watched.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

from coordinator.core.costing import Costing
from coordinator.core.interval import (
    Costs,
    Interval,
    Watched,
    at_least_s,
    best,
    lost_per_day,
    mtbf,
)
from coordinator.core.job_policy import JobHistory, JobPolicy, NodeHistory, When
from coordinator.core.model import AttemptRecord, AttemptState, Cut, RestoreRecord

LOOK_S = 1.0
GAP_S_MAX = 10.0  # between two looks: what lies further apart was not watched
RETRY_S = 30.0
RETRY_S_MAX = 600.0
ASKED_S = 10.0  # a checkpoint that was asked for has begun or was refused by then
NODES_MAX = 1024  # whose history is kept with a job


@dataclass(frozen=True)
class Sight:
    """How a job stands at one look."""

    job: str
    ready: bool  # every worker runs, and no attempt or restore has the job
    busy: bool  # a checkpoint has it, and the job is there
    step: int
    nodes: tuple[str, ...]  # of its workers
    no_steps: bool = False  # a rank has said that it takes none for now


@dataclass(frozen=True)
class Explanation:
    """The numbers behind the present interval of a job."""

    policy: JobPolicy
    history: JobHistory
    costs: Costs
    interval: Interval | None  # None: the policy has none in seconds, or nothing was measured yet
    due_in_s: float  # below 0: nothing is due by time
    waits: str  # what the next checkpoint waits for, one sentence


@dataclass
class _Job:
    policy: JobPolicy
    costing: Costing = field(default_factory=Costing)
    own: Watched = field(default_factory=Watched)
    seen_s: float = 0.0  # watched by this leader
    nodes: dict[str, Watched] = field(default_factory=dict)
    looked_at: float = -1.0
    ran: bool = False  # since the last interruption
    present: tuple[str, ...] = ()  # nodes of its workers
    since: float | None = None  # the interval counts from here; None: from when it runs
    step: int | None = None  # of the last checkpoint, or where the job began to run
    seen: int = -1  # step at the last look; ranks that their launcher starts again begin at 0
    tries: int = 0  # that failed one after another
    not_before: float = 0.0
    asked_at: float = float("-inf")

    def history(self) -> JobHistory:
        nodes = (NodeHistory(name, w.seconds, w.failures) for name, w in self.nodes.items())
        step_s = 1.0 / self.costing.rate if self.costing.rate else 0.0
        own = self.own
        return JobHistory(self.policy.job, own.seconds, own.failures, tuple(nodes), step_s)


class Schedule:
    """Jobs by name; one without a policy is watched too, so that a later one knows its past."""

    def __init__(self) -> None:
        self._jobs: dict[str, _Job] = {}
        self._look_at = float("-inf")

    # -- what is told ----------------------------------------------------------------------------

    def adopt(self, policies: Iterable[JobPolicy], histories: Iterable[JobHistory]) -> None:
        """Take over what the store holds."""
        for history in histories:
            job = self._of(history.job)
            job.own = Watched(history.watched_s, history.failures)
            job.nodes = {n.node: Watched(n.watched_s, n.failures) for n in history.nodes}
            job.costing.rate = 1.0 / history.step_s if history.step_s > 0 else 0.0
        for policy in policies:
            self._of(policy.job).policy = policy

    def set(self, policy: JobPolicy) -> None:
        """The policy of a job is changed; its next checkpoint is judged by the new one."""
        job = self._of(policy.job)
        job.policy, job.tries, job.not_before = policy, 0, 0.0

    def saved_before(self, name: str, ago_s: float, now: float) -> None:
        """A new leader learns how long ago the newest snapshot was committed."""
        self._of(name).since = now - max(0.0, ago_s)

    def remember(self, record: AttemptRecord, now: float) -> None:
        """One that has ended under an earlier leader; oldest first."""
        job = self._of(record.job)
        job.costing.attempt_ended(record, now)
        job.costing.spent_s = 0.0  # of time that this leader has not watched
        if record.state is AttemptState.COMMITTED:
            job.step = record.target

    def attempt_ended(self, record: AttemptRecord, now: float) -> JobHistory | None:
        """Count from here; returns the history that is to be kept, after a commit."""
        job = self._of(record.job)
        job.asked_at = float("-inf")
        job.costing.attempt_ended(record, now)
        if record.state is not AttemptState.COMMITTED:
            self._failed(job, now)
            return None
        job.since, job.step, job.tries, job.not_before = now, record.target, 0, 0.0
        return job.history()

    def policy(self, name: str) -> JobPolicy:
        """Of a job; never, where none was set."""
        return self._of(name).policy

    def cut(self, name: str) -> Cut:
        """How the ranks of a job come to rest."""
        return self._of(name).policy.cut

    def usual_s(self, name: str) -> float:
        """How long a step of a job usually takes; 0 while not known."""
        rate = self._of(name).costing.rate
        return 1.0 / rate if rate else 0.0

    def refused(self, name: str, now: float) -> None:
        """A checkpoint that was due is refused: it is tried again later."""
        self._failed(self._of(name), now)

    def interrupted(self, name: str, lost: Sequence[str], crashed: bool) -> JobHistory | None:
        """The run is over, for the loss of these nodes, or because it crashed; once a run.

        Returns the history that is to be kept; None where nothing has failed.
        """
        job = self._of(name)
        ran, job.ran, job.since, job.step, job.looked_at = job.ran, False, None, None, -1.0
        if ran and (lost or crashed):
            job.costing.failed()
        job.costing.forget_steps()
        job.tries, job.not_before = 0, 0.0  # what failed may have failed of what ended the run
        if not ran or not (lost or crashed):
            return None
        for node in lost:
            seen = job.nodes.get(node, Watched())
            job.nodes[node] = Watched(seen.seconds, seen.failures + 1)
        if not lost:
            job.own = Watched(job.own.seconds, job.own.failures + 1)
        return job.history()

    def restore_ended(self, record: RestoreRecord) -> None:
        """What it took is what the next one will take."""
        self._of(record.job).costing.restore_ended(record)

    # -- what is due -----------------------------------------------------------------------------

    def next_wakeup(self, *, at_all: bool = False) -> float | None:
        """When to look again; None while no job has a policy, unless somebody looks `at_all`."""
        due = at_all or any(job.policy.acts for job in self._jobs.values())
        return self._look_at if due else None

    def time_to_look(self, now: float) -> bool:
        """Whether it is; asked before the sights are made, which costs something."""
        if now < self._look_at:
            return False
        self._look_at = now + LOOK_S
        return True

    def look(self, sight: Sight, now: float) -> str:
        """See how a job stands; returns why a checkpoint is due, or nothing."""
        job = self._of(sight.job)
        self._watch(job, sight, now)
        if not sight.ready or now < job.not_before or now - job.asked_at < ASKED_S:
            return ""
        if _cannot_park(job, sight) or _over_budget_s(job) > 0:
            return ""
        reason = self._due(job, sight.step, now)
        if reason:
            job.asked_at = now
        return reason

    def explain(
        self, name: str, policy: JobPolicy | None, sight: Sight | None, now: float
    ) -> Explanation:
        """Why the next checkpoint of a job is due when it is; changes nothing."""
        job = self._jobs.get(name, _Job(JobPolicy(name)))
        job = job if policy is None else replace(job, policy=policy, tries=0, not_before=0.0)
        interval, costs = self._interval(job), job.costing.costs()
        due_in_s = -1.0
        if interval is not None and job.since is not None:
            left_s = interval.seconds - self._passed_s(job, now)
            due_in_s = max(0.0, left_s, job.not_before - now, _over_budget_s(job))
        return Explanation(
            job.policy, job.history(), costs, interval, due_in_s, self._waits(job, sight, now)
        )

    # -- pieces ----------------------------------------------------------------------------------

    def _of(self, name: str) -> _Job:
        if name not in self._jobs:
            self._jobs[name] = _Job(JobPolicy(name))
        return self._jobs[name]

    def _watch(self, job: _Job, sight: Sight, now: float) -> None:
        if not (sight.ready or sight.busy):
            job.looked_at = -1.0
            job.costing.forget_steps()
            return
        job.present = sight.nodes
        if not job.ran:
            job.ran = True
            job.step = min(sight.step, sight.step if job.step is None else job.step)
            job.since = now if job.since is None else job.since
            job.seen = -1
        if sight.step < job.seen:
            job.step = sight.step
        job.seen = sight.step
        if job.looked_at >= 0 and now - job.looked_at <= GAP_S_MAX:
            seconds = now - job.looked_at
            job.seen_s += seconds
            job.own = Watched(job.own.seconds + seconds, job.own.failures)
            for node in dict.fromkeys(sight.nodes):
                seen = job.nodes.pop(node, Watched())
                job.nodes[node] = Watched(seen.seconds + seconds, seen.failures)
            while len(job.nodes) > NODES_MAX:
                job.nodes.pop(next(iter(job.nodes)))
        job.looked_at = now
        job.costing.stepped(sight.step, now, busy=sight.busy)

    def _due(self, job: _Job, step: int, now: float) -> str:
        policy = job.policy
        if policy.when is When.STEPS:
            done = step - (step if job.step is None else job.step)
            since_s = now - job.since if job.since is not None else 0.0
            if done >= policy.interval_steps and since_s >= self._floor_s(job):
                return f"{done} steps since the last one, of {policy.interval_steps}"
            return ""
        interval = self._interval(job)
        passed_s = self._passed_s(job, now)
        if interval is None or passed_s < interval.seconds:
            return ""
        how = "auto, " if policy.when is When.AUTO else ""
        return f"{passed_s:.0f} s since the last one, {how}of {interval.seconds:.0f} s"

    def _interval(self, job: _Job) -> Interval | None:
        policy, costs = job.policy, job.costing.costs()
        if policy.when is When.SECONDS:
            floor_s = self._floor_s(job)
            bound = "budget" if floor_s > policy.interval_s else ""
            return self._fixed(job, max(floor_s, policy.interval_s), bound)
        if policy.when is not When.AUTO:
            return None
        if not job.costing.known:  # one has to be taken to know what it costs
            return Interval(policy.least_s, self._mtbf(job), 0.0, 0.0, "first", 0.0)
        return best(costs, self._mtbf(job), policy.bounds)

    def _fixed(self, job: _Job, seconds: float, bound: str) -> Interval:
        """One that the operator has set, and what it loses where failures are known or expected."""
        mtbf_s = lost_s = 0.0
        if job.costing.known and (job.policy.mtbf_s > 0 or _failures(job)):
            mtbf_s = mtbf(job.policy.mtbf_s or job.own.seconds, self._present(job), job.own)
            lost_s = lost_per_day(seconds, job.costing.costs(), mtbf_s)
        return Interval(seconds, mtbf_s, 0.0, 0.0, bound, lost_s)

    def _passed_s(self, job: _Job, now: float) -> float:
        """Since what the interval counts from."""
        if job.since is None:
            return 0.0
        by_formula = job.policy.when is When.AUTO and job.costing.known
        return now - job.since + (job.costing.stored_s if by_formula else 0.0)

    def _floor_s(self, job: _Job) -> float:
        """Where the interval is not by formula: the least that the budget allows."""
        return at_least_s(job.costing.costs(), job.policy.budget)

    def _mtbf(self, job: _Job) -> float:
        return mtbf(job.policy.mtbf_s, self._present(job), job.own)

    def _present(self, job: _Job) -> dict[str, Watched]:
        """Nodes that have a worker now; the others have taken their failures with them."""
        return {name: job.nodes.get(name, Watched()) for name in job.present}

    def _failed(self, job: _Job, now: float) -> None:
        job.tries += 1
        job.not_before = now + min(RETRY_S_MAX, RETRY_S * 2 ** min(job.tries - 1, 10))

    def _waits(self, job: _Job, sight: Sight | None, now: float) -> str:
        if job.policy.when is When.NEVER:
            return "nothing: it is taken when somebody asks for it"
        if sight is None or not (sight.ready or sight.busy):
            return "the job, which does not run with all its workers"
        if sight.busy:
            return "the checkpoint that is under way"
        if _cannot_park(job, sight):
            return "the end of what its ranks do that has no steps"
        if now < job.not_before:
            return f"a while, for {job.tries} failed or were refused one after another"
        if _over_budget_s(job) > 0:
            return f"its budget, for another {_over_budget_s(job):.0f} s"
        if job.policy.when is When.STEPS:
            due = (job.step or 0) + job.policy.interval_steps
            left_s = (job.since or 0.0) + self._floor_s(job) - now
            if sight.step >= due and left_s > 0:
                return f"its budget, for another {left_s:.0f} s"
            return f"step {due}; the job is at {sight.step}"
        return "its time"


def _failures(job: _Job) -> int:
    return job.own.failures + sum(seen.failures for seen in job.nodes.values())


def _over_budget_s(job: _Job) -> float:
    """How long nothing is due, for checkpoints have taken their share; also those given up."""
    return at_least_s(Costs(job.costing.spent_s), job.policy.budget) - job.seen_s


def _cannot_park(job: _Job, sight: Sight) -> bool:
    """Whether its ranks would be waited for at a step which they do not take for now."""
    return sight.no_steps and job.policy.cut is Cut.STEP
