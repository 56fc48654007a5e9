"""What a leader does about sick GPUs: drains their nodes, or has their jobs restored elsewhere.

    told, and fresh      ignored by the rules                          -> it is told
                         drain                                         -> DRAIN
                         restore                                       -> RESTORE
    DRAIN                the node is drained                           -> over
                         no other nodes can take its jobs              -> again, later
                         there is no time, or it has failed            -> RESTORE
    RESTORE              nothing of the job is on the node any more    -> over
                         its policy is to be left alone                -> it is told
                         it runs there: its recovery gives it up       -> again, later
    any                  too late, or the GPUs are well again          -> over

Only asks, as everything that is done by itself. What was told under an earlier leader is told
anew, while it is fresh; where the jobs are is looked at, never remembered.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from coordinator.core.cluster import Cluster
from coordinator.core.commands import AskDrain, Command
from coordinator.core.drain_events import DrainRequested
from coordinator.core.drain_records import DrainRecord, DrainState
from coordinator.core.errors import AllstopError, NoPlan
from coordinator.core.health_events import GpuTroubleTold
from coordinator.core.health_records import GpuTrouble
from coordinator.core.health_rules import HealthRule, HealthRules, Verdict
from coordinator.core.job_policy import JobPolicy, OnFailure
from coordinator.core.known import Job
from coordinator.core.model import WorkerRecord
from coordinator.core.running import Running

RETRY_S = 10.0  # then twice as long
RETRY_S_MAX = 60.0
UNANSWERED_S = 60.0  # a drain that was asked for is recorded or was refused by then
USE_S = 10.0  # for a worker to be seen that has just begun to use a GPU
LINES_MAX = 8  # decisions about a node that are shown
HEEDED_MAX = 4096


class Recoveries(Protocol):
    """What is asked of the recoveries of jobs."""

    def policy(self, job: str) -> JobPolicy:
        """What is done when the job fails."""

    def tell(self, job: str, text: str, now: float) -> list[Command]:
        """Write a line into its story."""

    def condemned(self, job: str, why: str, now: float) -> list[Command]:
        """Give up a run that goes on, if it can be restored elsewhere."""


@dataclass
class _Leaving:
    """A node that its jobs are to leave."""

    verdict: Verdict
    why: str
    deadline_s: float
    since: float
    asked_at: float | None = None  # for a drain
    refused: bool = False  # it was, once at least
    not_before: float = 0.0
    delay_s: float = RETRY_S
    nodes: int = 0  # in reach when it was tried last
    told: set[str] = field(default_factory=set)  # jobs that are left alone, and were told so


class GpuHealth:
    """Trouble of all nodes' GPUs; the caller looks about once a second."""

    def __init__(
        self,
        cluster: Cluster,
        running: Running,
        note: Callable[[str], None],
        rules: HealthRules,
        recoveries: Recoveries,
        drains: Callable[[], Mapping[str, DrainRecord]],
    ) -> None:
        """`drains`: where each drain stands, by node."""
        self._cluster = cluster
        self._running = running
        self._note = note
        self._rules = rules
        self._recoveries = recoveries
        self._drains = drains
        self._troubles: dict[str, tuple[GpuTrouble, ...]] = {}
        self._heeded: dict[tuple[object, ...], None] = {}
        self._leaving: dict[str, _Leaving] = {}
        self._lines: dict[str, list[str]] = {}

    # -- what is told ----------------------------------------------------------------------------

    def told(self, event: GpuTroubleTold, now: float) -> list[Command]:
        """All trouble that a node's GPUs have; what is new of it leads to what the rules say."""
        node = event.node
        self._troubles[node] = event.troubles
        sick = self._rules.sick(event.troubles)
        self._cluster.ill.pop(node, None)
        if sick:
            self._cluster.ill[node] = sick
        elif self._leaving.pop(node, None) is not None:
            self._say(node, "its GPUs are well again")
        commands: list[Command] = []
        for each in event.troubles:
            key = (node, each.uuid, each.index, each.kind, each.code, each.count)
            if each.fresh and key not in self._heeded:
                self._heeded[key] = None
                commands += self._heed(node, each, now)
        while len(self._heeded) > HEEDED_MAX:
            self._heeded.pop(next(iter(self._heeded)))
        return commands

    def forget(self, node: str) -> None:
        """Another shim process speaks for the node: it tells all there is anew."""
        self._troubles.pop(node, None)
        self._cluster.ill.pop(node, None)
        self._leaving.pop(node, None)
        self._lines.pop(node, None)
        for key in [key for key in self._heeded if key[0] == node]:
            self._heeded.pop(key)

    def drain_refused(self, event: DrainRequested, error: AllstopError, now: float) -> bool:
        """The drain that this has asked for was refused; nothing was stopped by it.

        Returns whether its jobs are not to be saved where they are instead: there is no time, or
        they were when it was refused before.
        """
        leaving = self._leaving.get(event.node)
        if leaving is None or leaving.asked_at is None:
            return False
        again, leaving.refused, leaving.asked_at = leaving.refused, True, None
        if isinstance(error, NoPlan):
            self._say(event.node, f"it cannot be drained yet: {error.what}")
            self._later(leaving, now)
            return again
        self._say(event.node, f"it cannot be drained: {error.what}")
        leaving.verdict, leaving.not_before = Verdict.RESTORE, now
        return True

    def look(self, now: float) -> list[Command]:
        """See where the jobs of sick nodes are, and go on."""
        commands: list[Command] = []
        for node, leaving in list(self._leaving.items()):
            if leaving.verdict is Verdict.DRAIN:
                commands += self._drain(node, leaving, now)
            else:
                commands += self._restore(node, leaving, now)
        return commands

    # -- questions -------------------------------------------------------------------------------

    @property
    def acts(self) -> bool:
        """Whether there is anything to look at."""
        return bool(self._leaving)

    def lines(self) -> Mapping[str, tuple[str, ...]]:
        """By node what its GPUs have, what the rules say of it, and what was decided."""
        found: dict[str, tuple[str, ...]] = {}
        for node, troubles in self._troubles.items():
            has = (f"{self._rules.told(t)} [{self._rules.of(t).verdict}]" for t in troubles)
            if lines := (*has, *self._lines.get(node, ())):
                found[node] = lines
        return found

    def suspicion(self, records: Iterable[WorkerRecord]) -> str:
        """Why what was saved by these may be wrong; empty: nothing is known.

        Counts what each shim wrote into its record, and what it has told since.
        """
        found: list[str] = []
        for record in records:
            if record.gpu_pids:
                known = (*record.troubles, *self._troubles.get(record.node, ()))
                used = {held.uuid for held in record.gpu_held}
                mine = [t for t in known if not used or not t.uuid or t.uuid in used]
                found += [f"{record.node}: {why}" for why in self._rules.uncorrected(mine)]
        return "; ".join(dict.fromkeys(found))

    # -- pieces ----------------------------------------------------------------------------------

    def _heed(self, node: str, trouble: GpuTrouble, now: float) -> list[Command]:
        rule, what = self._rules.of(trouble), self._rules.told(trouble)
        there = self._placed if rule.verdict is Verdict.DRAIN else self._on
        jobs = [job.name for job in self._cluster.jobs.values() if there(job, node)]
        commands: list[Command] = []
        if rule.verdict is Verdict.IGNORE and not rule.uncorrected:
            self._note(f"{node}: {what}: ignored by the rules")
            return []
        text = f"{node}: {what} [{rule.verdict}]"
        if rule.uncorrected:
            text += "; what is saved through it is suspect"
        self._note(text)
        for job in jobs:
            commands += self._recoveries.tell(job, text, now)
        if rule.verdict is not Verdict.IGNORE:
            self._leave(node, rule, what, now)
        return commands

    def _leave(self, node: str, rule: HealthRule, what: str, now: float) -> None:
        """The node's jobs are to leave it; what is worse counts."""
        known = self._leaving.get(node)
        if known is not None and known.verdict is Verdict.RESTORE:
            return
        if known is not None and rule.verdict is Verdict.DRAIN:
            return
        self._leaving[node] = _Leaving(rule.verdict, what, rule.deadline_s, now)

    def _drain(self, node: str, leaving: _Leaving, now: float) -> list[Command]:
        jobs = [job.name for job in self._cluster.jobs.values() if self._placed(job, node)]
        record = self._drains().get(node)
        if (record is not None and record.state is DrainState.DRAINED) or not jobs:
            return self._over(node, "nothing runs on it")
        if record is not None and record.state is DrainState.DRAINING:
            return []
        if record is not None and record.state is DrainState.FAILED and leaving.asked_at:
            self._say(node, f"its drain has failed: {record.reason}")
            leaving.verdict, leaving.not_before = Verdict.RESTORE, now
            return []
        if leaving.asked_at is not None and now - leaving.asked_at < UNANSWERED_S:
            return []
        if stay := [job for job in jobs if not self._acts_for(job)]:
            return self._left_alone(node, leaving, stay, now)
        if not self._due(leaving, now):
            return self._in_time(node, leaving, jobs, now)
        leaving.asked_at = now
        self._say(node, f"it is to be drained, within {leaving.deadline_s:.0f} s: {leaving.why}")
        return [AskDrain(node, leaving.deadline_s, leaving.why)]

    def _restore(self, node: str, leaving: _Leaving, now: float) -> list[Command]:
        jobs = [job for job in self._cluster.jobs.values() if self._on(job, node)]
        if not jobs:
            early = now - leaving.since < USE_S
            return [] if early else self._over(node, "no job uses its GPUs any more")
        commands: list[Command] = []
        stay = [job.name for job in jobs if not self._acts_for(job.name)]
        if stay:
            commands += self._left_alone(node, leaving, stay, now)
        going = [job.name for job in jobs if job.name not in stay]
        if not going:
            return commands
        if not self._due(leaving, now):
            return commands + self._in_time(node, leaving, going, now)
        for job in going:
            if not self._running.of_job(job):
                why = f"{node} has a sick GPU: {leaving.why}"
                commands += self._recoveries.condemned(job, why, now)
        self._later(leaving, now)
        return commands

    def _due(self, leaving: _Leaving, now: float) -> bool:
        """Whether to try (again): its time has come, or nodes have."""
        return now >= leaving.not_before or self._in_reach() > leaving.nodes > 0

    def _later(self, leaving: _Leaving, now: float) -> None:
        leaving.not_before, leaving.nodes = now + leaving.delay_s, self._in_reach()
        leaving.delay_s = min(RETRY_S_MAX, 2 * leaving.delay_s)

    def _in_time(
        self, node: str, leaving: _Leaving, jobs: Iterable[str], now: float
    ) -> list[Command]:
        """Give up once no policy waits any longer."""
        wait_s = max(self._recoveries.policy(job).wait_s for job in jobs)
        if now - leaving.since <= wait_s:
            return []
        return self._over(node, f"nothing more is tried after {wait_s:g} s")

    def _left_alone(
        self, node: str, leaving: _Leaving, jobs: Iterable[str], now: float
    ) -> list[Command]:
        commands: list[Command] = []
        for job in jobs:
            if job not in leaving.told:
                leaving.told.add(job)
                text = f"job {job} is left on {node}, as its policy is to leave it alone"
                self._say(node, text)
                commands += self._recoveries.tell(job, text, now)
        return commands

    def _over(self, node: str, why: str) -> list[Command]:
        self._leaving.pop(node, None)
        self._say(node, why)
        return []

    def _say(self, node: str, text: str) -> None:
        self._note(f"health of {node}: {text}")
        lines = self._lines.setdefault(node, [])
        if text not in lines[-1:]:
            lines.append(text)
            del lines[:-LINES_MAX]

    def _acts_for(self, job: str) -> bool:
        return self._recoveries.policy(job).on_failure is OnFailure.RESTORE

    def _in_reach(self) -> int:
        return sum(self._cluster.attached(name) for name in self._cluster.nodes)

    def _placed(self, job: Job, node: str) -> bool:
        """Whether a worker of the job is on the node, or may be."""
        return any(
            at == node and self._cluster.standing(job, worker) in ("alive", "lost")
            for worker, at in job.places.items()
        )

    def _on(self, job: Job, node: str) -> bool:
        """Whether a worker of it there uses a GPU."""
        states = ((at, self._cluster.worker(job, worker)) for worker, at in job.places.items())
        return any(at == node and state is not None and state.gpu for at, state in states)
