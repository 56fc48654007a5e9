"""Whether a request may begin: everything that is refused at once, before any record exists."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import islice
from typing import Any

from coordinator.core.action import DETAILS_LIMIT, Member
from coordinator.core.agreement import check_findings
from coordinator.core.attempt import Attempt
from coordinator.core.cluster import NOT_READY, Cluster
from coordinator.core.errors import (
    BadRequest,
    NotFound,
    NotReady,
    OldRunUnseen,
    Refused,
    Where,
)
from coordinator.core.events import CheckpointRequested, RestoreRequested
from coordinator.core.failures import error_of, listed
from coordinator.core.known import Job
from coordinator.core.model import AttemptState, Cut, Plan, RestoreState, WorkerState
from coordinator.core.pace import DEADLINES, Pace
from coordinator.core.policy import Policy
from coordinator.core.returning import Restore
from coordinator.core.starting import plan_or_start

REBUILD = "rebuild"
LIVE_NCCL = frozenset({REBUILD, "keep"})  # modes with communicators outside of a hold
PHASE_MAX_S = 86400.0  # an order's hold is counted in 32 bits of milliseconds


def admit_attempt(
    cluster: Cluster,
    pace: Pace,
    event: CheckpointRequested,
    epoch: int,
    policy: Policy,
    now: float,
) -> Attempt:
    """Build the attempt that was asked for, or raise a kind of Refused with every reason."""
    deadline_s = _deadline(event.deadline_s, policy.attempt_s)
    policy = _phase_deadlines(event, policy)
    job = _job(cluster, event.job)
    states = _members(cluster, job)
    _require_one_store(cluster, job)
    _require_one_mode(job, states)
    gpu = any(state.gpu for state in states)
    pace.check(job.name, event.cut, policy, deadline_s)
    freeze = event.cut is Cut.FREEZE
    if freeze:
        _refuse_live_nccl(job, states)
    _check_all_findings(job, states, freeze=freeze)
    return Attempt(
        id=event.attempt,
        job=job.name,
        epoch=epoch,
        incarnation=job.incarnation,
        policy=policy.with_devices() if gpu else policy,
        started=now,
        deadline_s=deadline_s,
        unix_s=event.unix_s,
        members={s.worker: Member(s.worker, job.places[s.worker]) for s in states},
        state=AttemptState.ADMITTING,
        reason="",
        seen={s.worker: s.ranks for s in states if s.ranks},
        cut=event.cut,
        stop=event.stop,
        cause=event.cause,
        gpu=gpu,
        rebuilds=any(s.nccl == REBUILD for s in states),
        world_size=_world_size(states),
    )


def _check_all_findings(job: Job, states: list[WorkerState], *, freeze: bool) -> None:
    """Raise NotReady with everything that any worker's preflight refuses."""
    problems: list[str] = []
    first: NotReady | None = None
    for state in states:
        try:
            check_findings(
                state.worker,
                job.places[state.worker],
                state.findings,
                freeze=freeze,
                phase="PREFLIGHT",
            )
        except NotReady as error:
            first = first or error
            problems.append(str(error.what))
    if first is not None:
        raise NotReady(
            listed(problems),
            where=first.where,
            advice=first.advice,
            details=tuple(islice(_texts(states), DETAILS_LIMIT)),
        )


def _require_one_store(cluster: Cluster, job: Job) -> None:
    """A snapshot lies in one store; shims that see another one were given another `--store`."""
    nodes: dict[str, list[str]] = {}
    for worker in range(job.workers):
        name = job.places[worker]
        nodes.setdefault(cluster.nodes[name].facts.store, []).append(name)
    if len(nodes) > 1:
        seen = [f"{listed(sorted(set(names)))} see {store}" for store, names in nodes.items()]
        raise NotReady(
            f"the workers' shims use different image stores: {'; '.join(seen)}",
            where=Where(job=job.name, phase="PREFLIGHT"),
            advice="start all of them with the same --store",
        )


def _require_one_mode(job: Job, states: list[WorkerState]) -> None:
    """Communicators join ranks of all workers: what one destroys no other can keep.

    A worker without a mode has no GPU, and its ranks no communicators.
    """
    modes: dict[str, list[WorkerState]] = {}
    for state in states:
        if state.nccl and state.ranks:
            modes.setdefault(state.nccl, []).append(state)
    if len(modes) > 1:
        told = [
            f"{mode} for worker {listed([str(s.worker) for s in of_mode])}"
            for mode, of_mode in modes.items()
        ]
        raise NotReady(
            f"the workers were started with different NCCL modes: {'; '.join(told)}",
            where=Where(
                job=job.name, worker=min(modes.values(), key=len)[0].worker, phase="PREFLIGHT"
            ),
            advice="start all with one --nccl, and have NCCL's checkpoint shim on all nodes",
        )


def _refuse_live_nccl(job: Job, states: list[WorkerState]) -> None:
    """A collective that is on its way in a device cannot be carried by TCP, as CPU ranks' can."""
    live = [str(s.worker) for s in states if s.nccl in LIVE_NCCL]
    if live:
        raise NotReady(
            f"workers {listed(live)} have NCCL communicators, which a frozen job cannot keep",
            where=Where(job=job.name, worker=int(live[0]), phase="PREFLIGHT"),
            advice="use --cut step, which parks the ranks between two steps",
        )


def _texts(states: list[WorkerState]) -> Iterator[str]:
    for state in states:
        yield from (f"worker {state.worker}: {finding.text}" for finding in state.findings)


def admit_restore(
    cluster: Cluster, event: RestoreRequested, epoch: int, policy: Policy, now: float
) -> Restore:
    """Plan the restore that was asked for, or raise a kind of Refused with every reason.

    Raises OldRunUnseen where nothing of what it replaces is in reach or known to be gone.
    """
    deadline_s = _deadline(event.deadline_s, policy.restore_s)
    snapshot = event.snapshot
    if snapshot.job != event.job:
        raise BadRequest(
            f"snapshot {snapshot.snapshot} is of job {snapshot.job}",
            where=Where(job=event.job),
            advice=f"restore it as {snapshot.job}",
        )
    job = _job(cluster, event.job)
    # By itself only: workers that a person starts anew may have taken the places of the store.
    gone = job.broken or (job.vacated and bool(event.cause))
    unseen = "" if gone or event.old_run_ended else why_unseen(cluster, job)
    if unseen:
        raise OldRunUnseen(
            f"the run of {job.name} may go on where this coordinator cannot see it: {unseen}",
            where=Where(job=job.name, phase="PLAN"),
            advice="bring one of its nodes back in reach, or make sure that none of its processes "
            f"lives and say so: `allstop restore {job.name} --old-run-ended`",
        )
    plan, cold_why = _plan(cluster, job, event)
    target = {p.worker: p.to_node for p in plan.placements}
    strays = {
        (node, worker): state
        for (node, worker), state in cluster.of_job(job.name).items()
        if target.get(worker) != node
    }
    with_gpus = any(r.gpu_pids for r in snapshot.workers)  # also those that it replaces
    return Restore(
        id=event.restore,
        job=job.name,
        epoch=epoch,
        incarnation=job.incarnation + 1,
        policy=policy.with_devices() if with_gpus else policy,
        started=now,
        deadline_s=deadline_s,
        unix_s=event.unix_s,
        members={worker: Member(worker, node) for worker, node in target.items()},
        state=RestoreState.ADMITTING,
        reason="",
        snapshot=snapshot,
        plan=plan,
        snapshot_id=snapshot.snapshot,
        gpu=with_gpus and not plan.cold,
        cold_why=cold_why,
        cause=event.cause,
        old_incarnation=job.incarnation,
        strays=strays,
        records={r.worker: r for r in snapshot.workers},
        run_from=job.base,
        held=cluster.run_in_reach(job),
        sure=gone or not job.incarnation or event.old_run_ended,
    )


def _plan(cluster: Cluster, job: Job, event: RestoreRequested) -> tuple[Plan, str]:
    """The plan, and where it is one to start from scratch, why; raises what refuses both."""
    planned, cold_why = plan_or_start(
        event.snapshot,
        cluster.candidates(
            job.name, event.files, anywhere=event.anywhere, failed_on=event.failed_on
        ),
        cold_start=event.cold_start,
        old_addresses=event.old_addresses,
        scratch=event.scratch,
    )
    if planned.plan is not None:
        return planned.plan, cold_why
    if planned.failure is None:
        raise Refused("the planner refused without a reason", where=Where(job=job.name))
    raise error_of(planned.failure)


def why_unseen(cluster: Cluster, job: Job) -> str:
    """Why a job's run may be taking steps that nobody here sees, or nothing where it cannot.

    A run that has lost one worker for good takes no more steps, and one in reach will be cleared
    away. Where neither is so, nodes without a coordinator may be training on: they do that when
    all coordinators or the network to them are gone.
    """
    if job.broken or not job.incarnation or cluster.run_in_reach(job):
        return ""
    others = _of_other_incarnations(cluster, job)
    places = [
        f"worker {worker} {_whereabouts(cluster, job, worker, others.get(worker, []))}"
        for worker in range(job.workers)
    ]
    return listed(places)


def _deadline(asked_s: float, default_s: float) -> float:
    if not 0 <= asked_s < float("inf"):
        raise BadRequest(f"a deadline of {asked_s} s makes no sense", advice="give seconds above 0")
    return asked_s or default_s


def _phase_deadlines(event: CheckpointRequested, policy: Policy) -> Policy:
    """The policy with what was asked for this checkpoint alone."""
    for phase, asked_s in event.phase_deadlines_s:
        if phase not in DEADLINES:
            raise BadRequest(
                f"phase {phase} has no deadline of its own",
                advice=f"name one of {', '.join(str(each) for each in DEADLINES)}",
            )
        if not 0 < asked_s <= PHASE_MAX_S:
            raise BadRequest(
                f"{asked_s} s for {phase} makes no sense",
                advice=f"give seconds above 0, at most {PHASE_MAX_S:g}",
            )
    named: dict[str, Any] = {
        DEADLINES[phase]: asked_s for phase, asked_s in event.phase_deadlines_s
    }
    return replace(policy, **named) if named else policy


def _job(cluster: Cluster, name: str) -> Job:
    job = cluster.jobs.get(name)
    if job is None:
        known = listed(sorted(cluster.jobs)) or "none"
        raise NotFound(
            f"no job {name!r} is known",
            where=Where(job=name),
            advice=f"known jobs: {known}; start one with `allstop shim run --job {name} …`",
        )
    return job


def _members(cluster: Cluster, job: Job) -> list[WorkerState]:
    """Every worker of the job, ready; raises NotReady naming each one that is not."""
    states: list[WorkerState] = []
    problems: list[str] = []
    others: dict[int, list[str]] | None = None
    for worker in range(job.workers):
        state = cluster.worker(job, worker)
        if state is None:
            others = _of_other_incarnations(cluster, job) if others is None else others
            place = _whereabouts(cluster, job, worker, others.get(worker, []))
            problems.append(f"worker {worker} {place}")
        elif state.state in NOT_READY:
            problems.append(f"worker {worker} on {job.places[worker]} is {state.state}")
        else:
            states.append(state)
    if problems:
        raise NotReady(
            listed(problems),
            where=Where(job=job.name, worker=int(problems[0].split()[1]), phase="PREFLIGHT"),
            advice="wait for the workers to run, or restore the last snapshot",
            details=tuple(problems[:DETAILS_LIMIT]),
        )
    return states


def _of_other_incarnations(cluster: Cluster, job: Job) -> dict[int, list[str]]:
    """Workers in reach that are not of the present run, by number: incarnation and node."""
    found: dict[int, list[str]] = {}
    for (at, worker), state in cluster.of_job(job.name).items():
        if state.incarnation != job.incarnation:
            found.setdefault(worker, []).append(f"of incarnation {state.incarnation} on {at}")
    return found


def _whereabouts(cluster: Cluster, job: Job, worker: int, others: list[str]) -> str:
    node = cluster.nodes.get(job.places.get(worker, ""))
    if node is not None and node.state != "attached":
        return f"was on {node.facts.node}, which is {node.state}: {node.reason}"
    if cluster.fresh_at(job, worker) is not None:
        return f"was started on {job.fresh[worker]} and is not taken in yet: {job.waiting}"
    if others:
        return f"is only there {listed(others)}; the job is at incarnation {job.incarnation}"
    return "is on no node"


def _world_size(states: list[WorkerState]) -> int:
    sizes = {s.world_size for s in states if s.world_size}
    if len(sizes) > 1:
        told = listed([f"worker {s.worker} says {s.world_size}" for s in states])
        raise NotReady(
            f"the workers do not agree how many ranks the job has: {told}",
            where=Where(worker=states[0].worker, phase="PREFLIGHT"),
            advice="two runs of the job may be mixed; end the older one",
        )
    return sizes.pop() if sizes else 0
