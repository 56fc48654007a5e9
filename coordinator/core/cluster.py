"""What is known of nodes and jobs: who is attached, where workers are, which incarnation counts.

Only what shims report and what the store holds; attempts and restores are not known here.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from coordinator.core import homes
from coordinator.core.errors import BugError
from coordinator.core.events import NodeAttached, NodeReported, WorkerExited
from coordinator.core.fit import Candidate
from coordinator.core.known import ATTACHED, LEFT, Job, Node
from coordinator.core.model import (
    AttemptRecord,
    JobRecord,
    NodeFacts,
    RestoreRecord,
    RestoreState,
    WorkerState,
)

FRESH = 0  # incarnation of a worker that was launched and that no run has taken in yet
NOT_ALIVE = frozenset({"exited"})
NO_STEPS = frozenset({"exited", "restored"})
NOT_READY = frozenset({"exited", "faulted", "starting"})

Stale = tuple[WorkerState, str]  # a worker that has to go, and why


class Cluster:
    """All nodes and jobs; every method leaves both consistent with each other."""

    def __init__(self, lost_limit: int) -> None:
        self.nodes: dict[str, Node] = {}
        self.jobs: dict[str, Job] = {}
        self.drained: dict[str, str] = {}  # nodes that take no workers, and why
        self.ill: dict[str, dict[str, str]] = {}  # by node why a GPU is not to be used, by UUID
        self._lost_limit = lost_limit
        self._gone: dict[str, None] = {}  # lost and left nodes, longest gone first

    # -- nodes ---------------------------------------------------------------------------------

    def attached(self, node: str) -> bool:
        """Whether a node is in reach."""
        found = self.nodes.get(node)
        return found is not None and found.state == ATTACHED

    def attach(self, event: NodeAttached) -> list[Stale]:
        """A shim is there with these workers; return those that must not go on."""
        name = event.facts.node
        known = self.nodes.get(name)
        node = Node(event.facts, event.session)
        if known is not None:
            node.workers = known.workers
        self.nodes[name] = node
        self._gone.pop(name, None)
        same = known is not None and known.session == event.session
        homes.look(self.jobs, name, [s for s in event.workers if s.state not in NO_STEPS])
        return self._take(node, event.workers, fresh=True, same=same)

    def report(self, event: NodeReported) -> list[Stale]:
        """An attached shim tells how its workers are; return those that must not go on."""
        node = self.nodes[event.node]
        if event.facts is not None:
            node.facts = event.facts
        return self._take(node, event.workers, fresh=False, same=True)

    def lose(self, name: str, state: str, reason: str) -> None:
        """A node is out of reach (lost) or has gone on purpose (left)."""
        node = self.nodes[name]
        node.state, node.reason = state, reason
        self._gone[name] = None
        if state == LEFT:
            for worker_state in node.workers.values():
                self._has_ended(worker_state)
        if len(self._gone) > self._lost_limit:
            oldest = next(iter(self._gone))
            self._gone.pop(oldest)
            for job, worker in self.nodes.pop(oldest).workers:
                places = self.jobs[job].places if job in self.jobs else {}
                if places.get(worker) == oldest:
                    places.pop(worker)

    def taken_away(self, name: str, why: str) -> list[str]:
        """A node's shim ends with its workers; what is told of the jobs whose runs that ends.

        A run that had lost a worker before is not ended by this.
        """
        told: list[str] = []
        for job in self.jobs.values():
            there = name in job.places.values() and self.attached(name)
            if there and not job.taken_away and len(self.alive(job)) == job.workers:
                job.taken_away = f"{name} was taken away, {why}"
                told.append(f"job {job.name}: {job.taken_away}")
        return told

    def exited(self, event: WorkerExited) -> WorkerExited:
        """A worker has ended; return the event with the incarnation that the worker is known by."""
        node = self.nodes[event.node]
        key = (event.job, event.worker)
        known = node.workers.get(key)
        if known is not None and event.incarnation in (FRESH, known.incarnation):
            self._has_ended(known)
            event = replace(event, incarnation=known.incarnation)
            node.workers[key] = replace(known, state="exited", exit_code=event.exit_code, action="")
        return event

    def _take(
        self, node: Node, states: Iterable[WorkerState], *, fresh: bool, same: bool
    ) -> list[Stale]:
        before, node.workers = node.workers, {}
        stale: list[Stale] = []
        for state in states:
            key = (state.job, state.worker)
            known = before.get(key)
            if same and known is not None and state.incarnation < known.incarnation:
                # it was taken in after it had said this, or has not heard of that
                state = replace(state, incarnation=known.incarnation)
            node.workers[key] = state
            why = self._learn(node.facts.node, state)
            if state.state in NO_STEPS:
                self._has_ended(state)
            new = fresh or known is None or known.incarnation != state.incarnation
            if why and new and state.state not in NOT_ALIVE:
                stale.append((state, why))
        for job, worker in before.keys() - node.workers.keys():
            self._has_ended(before[(job, worker)])
            places = self.jobs[job].places if job in self.jobs else {}
            if places.get(worker) == node.facts.node:
                places.pop(worker)
        node.condemned &= node.workers.keys()
        return stale

    # -- jobs ----------------------------------------------------------------------------------

    def load(self, record: JobRecord, *, sure_at: float = 0.0, latest_unix_s: float = 0.0) -> None:
        """Take a job from the store; what shims reported meanwhile stays when it is newer."""
        job = self.jobs.setdefault(record.job, Job(record.job, record.workers))
        job.sure_at = sure_at
        job.latest_unix_s = latest_unix_s or job.latest_unix_s
        job.world_size = record.world_size or job.world_size
        job.latest = record.latest or job.latest
        self.raise_incarnation(record.job, record.incarnation)

    def raise_incarnation(self, name: str, incarnation: int, floor: int | None = None) -> None:
        """From now on only workers of this incarnation are the job.

        With `floor` those from that one on can become it again; see `Job`.
        """
        job = self.jobs.get(name)
        if job is not None and incarnation > job.incarnation:
            job.incarnation = incarnation
            job.floor = incarnation if floor is None else floor
            if floor is None:
                job.base = incarnation
                job.is_whole()
            job.places, job.whole = {}, False
            job.taken_away = ""

    def stopped(self, record: AttemptRecord) -> None:
        """An attempt of an earlier leader has stopped the job, where its nodes were in reach."""
        job = self.jobs.get(record.job)
        if job is not None and record.incarnation == job.incarnation:
            job.broken = job.broken or len(record.owed) < len(record.nodes)

    def ended_by(self, record: AttemptRecord) -> None:
        """An attempt has stopped the job: how its workers end says nothing of failures."""
        job = self.jobs.get(record.job)
        if job is not None and record.incarnation == job.incarnation:
            job.taken_away = job.taken_away or f"it was stopped by {record.attempt}"

    def replaced(self, record: RestoreRecord) -> None:
        """A restore of an earlier leader has failed: the run that it was to replace may go on."""
        job = self.jobs.get(record.job)
        failed = record.state is RestoreState.FAILED
        if job is not None and failed and record.incarnation == job.incarnation:
            job.base = min(job.base, record.old_from or job.base)
            job.broken = job.broken or record.sure

    def _has_ended(self, state: WorkerState) -> None:
        """A worker is gone, or was brought back by a restore and never ran.

        Either way no run takes steps any more: no restore brings a tree back before it is sure of
        that (see `clearing`).
        """
        job = self.jobs.get(state.job)
        if job is not None and job.of_run(state):
            job.broken = True

    def _learn(self, node: str, state: WorkerState) -> str:
        """Take one worker into its job; return why it must not go on, or nothing."""
        job = self.jobs.setdefault(state.job, Job(state.job, state.workers))
        job.known = True
        if FRESH < state.incarnation < job.floor:
            return (
                f"worker {state.worker} of job {state.job} is of incarnation {state.incarnation}, "
                f"and the job was restored or started anew since, as incarnation {job.incarnation}"
            )
        if state.incarnation < job.incarnation or state.incarnation == FRESH:
            if job.places.get(state.worker) == node:  # what was here ended before this one began
                job.places.pop(state.worker)
            return ""  # see `runs`
        self.raise_incarnation(state.job, state.incarnation)
        if state.workers != job.workers:
            if any(w.worker != state.worker for w in self.alive(job)):
                return (
                    f"worker {state.worker} says that job {state.job} has {state.workers} workers; "
                    f"it has {job.workers}"
                )
            job.workers = state.workers
        if not 0 <= state.worker < job.workers:
            return f"job {state.job} has no worker {state.worker}, only 0..{job.workers - 1}"
        elsewhere = job.places.get(state.worker, node)
        if elsewhere != node and self._alive_at(job, state.worker) is not None:
            if state.state in NOT_ALIVE:
                return ""
            return f"worker {state.worker} of job {state.job} already runs on {elsewhere}"
        job.places[state.worker] = node
        job.world_size = state.world_size or job.world_size
        return ""

    def place(self, state: WorkerState, node: str) -> None:
        """A restored worker runs; its shim's next report replaces what is noted here."""
        job = self.jobs[state.job]
        job.world_size = state.world_size or job.world_size
        job.workers = state.workers
        if self.attached(node):
            self.nodes[node].workers[(state.job, state.worker)] = state
            job.places[state.worker] = node

    def admit(self, job: Job, node: str, state: WorkerState) -> WorkerState:
        """This worker is the job's in its present incarnation, from now on."""
        taken = replace(state, incarnation=job.incarnation)
        self.nodes[node].workers[(job.name, state.worker)] = taken
        job.places[state.worker] = node
        job.world_size = state.world_size or job.world_size
        job.workers = state.workers
        job.fresh.pop(state.worker, None)
        job.told.pop(state.worker, None)
        return taken

    # -- questions -----------------------------------------------------------------------------

    def facts(self, name: str) -> NodeFacts:
        """What a node is and has, with what is known of the health of its GPUs."""
        return self._with_health(self.nodes[name].facts)

    def _with_health(self, facts: NodeFacts) -> NodeFacts:
        ill = self.ill.get(facts.node)
        if not ill:
            return facts
        gpus = tuple(replace(gpu, sick=gpu.sick or ill.get(gpu.uuid, "")) for gpu in facts.gpus)
        unseen = [why for uuid, why in ill.items() if uuid not in {gpu.uuid for gpu in gpus}]
        trouble = "; ".join((*(t for t in (facts.gpu_trouble,) if t), *unseen))
        return replace(facts, gpus=gpus, gpu_trouble=trouble)

    def worker(self, job: Job, worker: int) -> WorkerState | None:
        """A worker of the present incarnation, as last reported, while its node is in reach."""
        node = self.nodes.get(job.places.get(worker, ""))
        if node is None or node.state != ATTACHED:
            return None
        state = node.workers.get((job.name, worker))
        return state if state is not None and state.incarnation == job.incarnation else None

    def _alive_at(self, job: Job, worker: int) -> WorkerState | None:
        state = self.worker(job, worker)
        return None if state is None or state.state in NOT_ALIVE else state

    def standing(self, job: Job, worker: int) -> str:
        """How a place of the present incarnation stands: none, alive, lost, over."""
        at = job.places.get(worker)
        if at is None:
            return "none"
        node = self.nodes.get(at)
        state = node.workers.get((job.name, worker)) if node is not None else None
        if node is None or state is None or state.state in NOT_ALIVE or node.state == LEFT:
            return "over"
        return "alive" if node.state == ATTACHED else "lost"

    def fresh_at(self, job: Job, worker: int) -> tuple[str, WorkerState] | None:
        """The node and state of a worker that waits to be taken in, while it still can be."""
        at = job.fresh.get(worker, "")
        node = self.nodes.get(at)
        state = node.workers.get((job.name, worker)) if node is not None else None
        if (
            node is not None
            and node.state == ATTACHED
            and state is not None
            and state.incarnation == FRESH
            and state.state not in NOT_ALIVE
        ):
            return at, state
        job.fresh.pop(worker, None)
        return None

    def alive(self, job: Job) -> list[WorkerState]:
        """Workers of the present incarnation that are in reach and have not ended."""
        found = (self._alive_at(job, worker) for worker in sorted(job.places))
        return [state for state in found if state is not None]

    def of_job(self, job: str) -> dict[tuple[str, int], WorkerState]:
        """Live workers of a job in reach, of any incarnation, by node and number."""
        return {
            (name, worker): state
            for name, node in self.nodes.items()
            if node.state == ATTACHED
            for (of, worker), state in node.workers.items()
            if of == job and state.state not in NOT_ALIVE
        }

    def run_in_reach(self, job: Job) -> set[tuple[str, int]]:
        """Live workers in reach of the run that may be taking steps, by node and number."""
        return {key for key, state in self.of_job(job.name).items() if job.of_run(state)}

    def candidates(
        self,
        job: str,
        answers: Iterable[NodeFacts],
        *,
        anywhere: bool = False,
        failed_on: Sequence[str] = (),
    ) -> list[Candidate]:
        """Every node as the planner sees it, with the answers about program files filled in.

        `anywhere`: those that are drained too. `failed_on`: where a restore has failed, once for
        each time.
        """
        answered = {facts.node: facts for facts in answers}
        found: list[Candidate] = []
        for name, node in self.nodes.items():
            alive = [k for k, s in node.workers.items() if s.state not in NOT_ALIVE]
            found.append(
                Candidate(
                    facts=self._with_health(answered.get(name, node.facts)),
                    state=node.state,
                    reason=node.reason,
                    own=tuple(worker for of, worker in alive if of == job),
                    others=tuple(f"worker {w} of job {of}" for of, w in alive if of != job),
                    drained="" if anywhere else self.drained.get(name, ""),
                    failed=failed_on.count(name),
                )
            )
        return found

    def validate(self) -> None:
        """Raise BugError unless nodes and jobs agree: one place a worker, one incarnation a job."""
        for job in self.jobs.values():
            for worker, at in job.places.items():
                node = self.nodes.get(at)
                if node is None:
                    raise BugError(f"worker {worker} of {job.name} is on {at}, which is not known")
                state = node.workers.get((job.name, worker))
                if state is None or state.incarnation != job.incarnation:
                    raise BugError(
                        f"worker {worker} of {job.name} is placed on {at}, which has {state} there"
                    )
                if node.state == ATTACHED and not 0 <= worker < job.workers:
                    raise BugError(f"{job.name} has {job.workers} workers and a worker {worker}")
