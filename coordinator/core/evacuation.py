"""Whether other nodes can take all that runs on a node, judged before anything is stopped.

A job is planned as if it were saved now: what its workers need is known from its newest snapshot,
where there is one, and from the nodes they are on. Memory, images and program files of a job that
was never saved are not known, and not asked for. A node that one job is to take is no other job's.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from coordinator.core.cluster import Cluster
from coordinator.core.drain_events import DrainRequested
from coordinator.core.failures import error_of
from coordinator.core.known import Job
from coordinator.core.model import Cut, Snapshot, WorkerRecord, WorkerState
from coordinator.core.planner import plan
from coordinator.core.snapshot import digest_of


def require_nodes(cluster: Cluster, jobs: Iterable[Job], event: DrainRequested) -> None:
    """Raise NoPlan, with every reason of every node, for the first job that cannot be moved."""
    known = {snapshot.job: snapshot for snapshot in event.snapshots}
    taken: dict[str, list[str]] = {}
    for job in jobs:
        states = cluster.alive(job)
        if len(states) != job.workers:
            continue  # something has it, or it would have been refused; planned when it is stopped
        wanted = _as_now(cluster, job, states, known.get(job.name))
        candidates = [
            replace(
                each,
                others=(*each.others, *taken.get(each.facts.node, ())),
                drained="it is to be drained" if each.facts.node == event.node else each.drained,
            )
            for each in cluster.candidates(job.name, event.files)
        ]
        planned = plan(wanted, candidates)
        if planned.failure is not None:
            raise error_of(planned.failure).at(job=job.name)
        assert planned.plan is not None
        for place in planned.plan.placements:
            told = f"worker {place.worker} of job {job.name}, which has to leave {event.node}"
            taken.setdefault(place.to_node, []).append(told)


def _as_now(
    cluster: Cluster, job: Job, states: list[WorkerState], known: Snapshot | None
) -> Snapshot:
    """The snapshot that a checkpoint of the job would make, as far as it can be told before."""
    before = {record.worker: record for record in known.workers} if known is not None else {}
    records = tuple(_record(cluster, job, state, before.get(state.worker)) for state in states)
    return Snapshot(
        snapshot=known.snapshot if known is not None else "of now",
        job=job.name,
        epoch=0,
        incarnation=job.incarnation,
        world_size=job.world_size,
        step=0,
        cut=known.cut if known is not None else Cut.STEP,
        workers=records,
        image_bytes=sum(record.image_bytes for record in records),
        digest=digest_of(records),
        committed_unix_s=0.0,
    )


def _record(
    cluster: Cluster, job: Job, state: WorkerState, before: WorkerRecord | None
) -> WorkerRecord:
    node = job.places[state.worker]
    facts = cluster.nodes[node].facts
    made = before or _unknown(job.name, state)
    return replace(
        made,
        node=node,
        address=facts.address,
        architecture=facts.architecture,
        cpu_flags=facts.cpu_flags,
        kernel=facts.kernel,
        criu_version=facts.criu_version,
        store=facts.store,
        gpus=facts.gpus,
        gpus_unseen=facts.gpus_unseen,
        gpu_held=made.gpu_held if made.node == node else (),
        gpu_driver=facts.gpu_driver,
        cuda_version=facts.cuda_version,
    )


def _unknown(job: str, state: WorkerState) -> WorkerRecord:
    """Of a worker that was never saved nothing is known but what its node is."""
    return WorkerRecord(
        job=job,
        worker=state.worker,
        node="",
        address="",
        root_pid=state.root_pid,
        highest_pid=state.root_pid,
        ranks=state.ranks,
        image_bytes=0,
        memory_bytes=0,
        manifest="",
        manifest_digest="",
        connections=(),
        programs=(),
        architecture="",
        cpu_flags=(),
        kernel="",
        criu_version="",
        store="",
        held_ms=0,
        dump_ms=0,
        gpu_pids=(state.root_pid,) if state.gpu else (),
        nccl=state.nccl,
    )
