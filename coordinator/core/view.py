"""What operators are shown: plain values with the fields of operator.proto, and their making."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from coordinator.core.attempt import Attempt
from coordinator.core.cluster import Cluster
from coordinator.core.drain_records import DrainRecord
from coordinator.core.known import Job
from coordinator.core.model import JobRecord, NodeFacts, WorkerState
from coordinator.core.running import AnyAction


@dataclass(frozen=True)
class JobView:
    """One job as the coordinator sees it at this moment."""

    job: JobRecord
    workers: tuple[WorkerState, ...]  # of the present incarnation, by number
    nodes: tuple[str, ...]  # where these workers are, in the same order
    # running, checkpointing, restoring, starting, incomplete, exited, unknown, damaged
    state: str
    action: str = ""  # the attempt or restore that has the job
    step: int = 0  # highest boundary seen
    latest_unix_s: float = 0.0  # when the newest snapshot was committed; 0: there is none
    waiting: str = ""  # what its launched workers wait for; empty: none waits
    problems: tuple[str, ...] = ()  # what of it cannot be read in the store, by key
    recovery: str = ""  # why it is not brought back by itself, or not yet


@dataclass(frozen=True)
class NodeView:
    """One node as the coordinator sees it at this moment."""

    facts: NodeFacts
    state: str  # attached, lost, left
    workers: tuple[WorkerState, ...]
    reason: str = ""  # why it is lost or left
    drain: DrainRecord | None = None  # it is being emptied, or was
    health: tuple[str, ...] = ()  # trouble of its GPUs, and what was decided about it


def job_views(
    cluster: Cluster,
    running: Mapping[str, AnyAction],
    problems: Mapping[str, Sequence[str]],
    recovery: Callable[[str], str],
) -> tuple[JobView, ...]:
    """All jobs, by name; also those of which nothing but damage is known."""
    views = {
        name: replace(
            _job(cluster, job, running.get(name)),
            problems=tuple(problems.get(name, ())),
            recovery=recovery(name),
        )
        for name, job in cluster.jobs.items()
    }
    for name in problems.keys() - views.keys():
        record = JobRecord(name, 0, 0, 0)
        views[name] = JobView(record, (), (), "damaged", problems=tuple(problems[name]))
    return tuple(views[name] for name in sorted(views))


def _job(cluster: Cluster, job: Job, action: AnyAction | None) -> JobView:
    found = [(w, cluster.worker(job, w)) for w in sorted(job.places)]
    states = [(w, s) for w, s in found if s is not None]
    boundaries = [r.boundary for _, s in states for r in s.ranks]
    return JobView(
        job=job.record(),
        workers=tuple(s for _, s in states),
        nodes=tuple(job.places[w] for w, _ in states),
        state=_state(job, [s for _, s in states], action),
        action=action.id if action else "",
        step=max(boundaries, default=0) if max(boundaries, default=0) > 0 else 0,
        latest_unix_s=job.latest_unix_s,
        waiting=job.waiting if any(cluster.fresh_at(job, w) for w in list(job.fresh)) else "",
    )


def _state(job: Job, states: list[WorkerState], action: AnyAction | None) -> str:
    if action is not None:
        return "checkpointing" if isinstance(action, Attempt) else "restoring"
    alive = [s for s in states if s.state != "exited"]
    if job.fresh and not alive:
        return "starting"
    if not job.known:
        return "unknown"
    if states and not alive:
        return "exited"
    return "running" if len(alive) == job.workers else "incomplete"


def node_views(
    cluster: Cluster,
    drains: Mapping[str, DrainRecord],
    health: Mapping[str, tuple[str, ...]],
) -> tuple[NodeView, ...]:
    """All nodes, by name."""
    return tuple(
        NodeView(
            cluster.facts(name),
            node.state,
            tuple(node.workers.values()),
            node.reason,
            drains.get(name),
            health.get(name, ()),
        )
        for name, node in sorted(cluster.nodes.items())
    )
