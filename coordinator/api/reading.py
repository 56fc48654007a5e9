"""Requests that change nothing: plan, list, show."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from dataclasses import replace

from allstop.v1 import operator_pb2, records_pb2

from coordinator.api.desk import Desk
from coordinator.api.identity import restore_id
from coordinator.codec import member_of, to_proto
from coordinator.core import commands, events
from coordinator.core.errors import NotFound, NotReady, Refused, StoreError, Where
from coordinator.core.model import (
    AttemptState,
    NodeFacts,
    OldAddresses,
    ProgramFile,
    Snapshot,
    WorkerState,
)
from coordinator.core.view import JobView, NodeView
from coordinator.store.port import Shown

READ_DEADLINE_S = 10.0


async def snapshot_to_restore(desk: Desk, job: str, snapshot: str) -> Snapshot:
    """The snapshot that a restore of `job` means; empty means its latest.

    Raises NotFound for a job or id that is not there, Refused for an attempt that was never
    committed (saying how it ended) and for another job's snapshot.
    """
    if not snapshot:
        snapshot = await _latest(desk, job)
    try:
        async with asyncio.timeout(READ_DEADLINE_S):
            found = await desk.store.snapshot(snapshot)
    except TimeoutError:
        raise StoreError("the store did not answer in time", where=Where(job=job)) from None
    except NotFound:
        await _refuse_uncommitted(desk, job, snapshot)
        raise
    if found.job != job:
        raise Refused(
            f"snapshot {snapshot} is one of job {found.job}, not of {job}", where=Where(job=job)
        )
    return found


async def _latest(desk: Desk, job: str) -> str:
    known = desk.control.job(job)
    if known is not None and known.latest and not _speaks_against(desk, job, known.latest):
        return known.latest
    snapshots = [each for each in await desk.store.snapshots(job) if not each.deleting]
    if known is None and not snapshots:
        raise NotFound(f"there is no job {job}", advice="`allstop jobs` lists them")
    if not snapshots:
        raise NotFound(
            f"job {job} has no snapshot yet",
            where=Where(job=job),
            advice=f"`allstop checkpoint {job}` takes one",
        )
    whole = [each for each in snapshots if not each.damaged] or snapshots
    good = [each for each in whole if not each.suspect]
    if not good:
        raise _only_suspect(job, whole[-1])
    return good[-1].snapshot


def _speaks_against(desk: Desk, job: str, snapshot: str) -> str:
    """Why a snapshot is not what a restore takes by itself; empty: nothing does."""
    return desk.control.damage(job, snapshot) or desk.control.suspicion(job, snapshot)


def _only_suspect(job: str, newest: Snapshot) -> NotFound:
    """What is wrong with a state that was saved through a sick GPU nobody can say: a person must.

    A NotFound, so that a recovery goes on as where there is no snapshot.
    """
    return NotFound(
        f"job {job} has no snapshot that can be relied on: the newest, {newest.snapshot}, is "
        f"suspect: {newest.suspect}",
        where=Where(job=job),
        advice=f"`allstop restore {job} --snapshot {newest.snapshot}` takes it all the same",
    )


async def _refuse_uncommitted(desk: Desk, job: str, identity: str) -> None:
    """Raise Refused when this id is an attempt's or a restore's; nothing when nobody knows it."""
    shown = await find(desk, identity)
    if shown.attempt is not None:
        attempt = shown.attempt
        if attempt.state is AttemptState.COMMITTED:
            raise Refused(
                f"snapshot {identity} was deleted",
                where=Where(job=attempt.job),
                advice=f"`allstop snapshots {attempt.job}` lists what can be restored",
            )
        raise Refused(
            f"{identity} was never committed: it is an attempt in state {attempt.state}"
            f" ({attempt.reason})",
            where=Where(job=attempt.job),
            advice=f"`allstop snapshots {attempt.job}` lists what can be restored",
        )
    if shown.restore is not None:
        raise Refused(
            f"{identity} is a restore, not a snapshot; it restored {shown.restore.snapshot}",
            where=Where(job=shown.restore.job),
        )


async def find(desk: Desk, identity: str) -> Shown:
    """Whatever has this id, from the core while it runs, else from the store; may be empty."""
    attempt = desk.control.attempt(identity)
    restore = desk.control.restore(identity)
    try:
        async with asyncio.timeout(READ_DEADLINE_S):
            stored = await desk.store.show(identity)
    except NotFound:
        stored = Shown()
    except TimeoutError:
        raise StoreError("the store did not answer in time") from None
    return replace(stored, attempt=attempt or stored.attempt, restore=restore or stored.restore)


async def restore_by_itself(desk: Desk, ask: commands.AskRestore) -> events.RestoreRequested:
    """The request for a restore that a leader makes itself.

    Raises NotFound where no snapshot is left, and what reading the store raises.
    """
    if ask.snapshot:
        snapshot = await _good_or(desk, ask.job, ask.snapshot)
    else:
        skip = frozenset() if ask.scratch else frozenset(ask.skip)
        snapshot = await _newest_but(desk, ask.job, skip, suspect=ask.scratch)
    now = desk.unix()
    return events.RestoreRequested(
        job=ask.job,
        restore=restore_id(ask.job, now),
        snapshot=snapshot,
        deadline_s=0.0,
        unix_s=now,
        files=await ask_program_files(desk, snapshot),
        cause=ask.cause,
        scratch=ask.scratch,
        drain=ask.drain,
        anywhere=ask.anywhere,
        failed_on=ask.failed_on,
        old_addresses=OldAddresses.MOVE if ask.scratch else OldAddresses.REFUSE,
    )


async def _good_or(desk: Desk, job: str, named: str) -> Snapshot:
    """The snapshot that a drain has stopped a job with, or the newest good one where it is suspect.

    Where there is no good one the run goes on with what it was stopped with: with just this state
    it would have gone on without the drain.
    """
    found = await snapshot_to_restore(desk, job, named)
    if not found.suspect:
        return found
    try:
        return await _newest_but(desk, job, frozenset())
    except NotFound:
        return found


async def _newest_but(
    desk: Desk, job: str, skip: AbstractSet[str], *, suspect: bool = False
) -> Snapshot:
    """The newest that is whole and not among `skip`; `suspect`: for its command alone."""
    try:
        async with asyncio.timeout(READ_DEADLINE_S):
            found = await desk.store.snapshots(job)
            left = [
                each
                for each in found
                if not (each.snapshot in skip or each.deleting or each.damaged)
            ]
            good = [each for each in left if suspect or not each.suspect]
            if left and not good:
                raise _only_suspect(job, left[-1])
            if not left:
                raise NotFound(
                    f"job {job} has no snapshot{' but those left behind' if found else ''}",
                    where=Where(job=job),
                )
            known = desk.control.job(job)
            latest = [each for each in good if known is not None and each.snapshot == known.latest]
            return await desk.store.snapshot((latest or good)[-1].snapshot, job)
    except TimeoutError:
        raise StoreError("the store did not answer in time", where=Where(job=job)) from None


async def ask_program_files(desk: Desk, snapshot: Snapshot) -> tuple[NodeFacts, ...]:
    """Ask the nodes for every program file of every worker of the snapshot, each once."""
    return await ask_files_of(desk, (snapshot,))


async def ask_files_of(desk: Desk, snapshots: Sequence[Snapshot]) -> tuple[NodeFacts, ...]:
    """The same of several snapshots."""
    files: dict[tuple[str, int, str], ProgramFile] = {
        (file.path, file.size_bytes, file.digest): file
        for snapshot in snapshots
        for worker in snapshot.workers
        for file in worker.programs
    }
    return await desk.hub.ask(tuple(files.values()))


def old_addresses_of(
    request: operator_pb2.RestoreRequest | operator_pb2.PlanRequest,
) -> OldAddresses:
    """What is asked for; whoever says nothing has commands that name others refused."""
    if not request.old_addresses:
        return OldAddresses.REFUSE
    of = f"old_addresses of {type(request).__name__}"
    return member_of(OldAddresses, request.old_addresses, of)


async def plan(desk: Desk, request: operator_pb2.PlanRequest) -> operator_pb2.PlanReply:
    """Where a restore would put each worker now; a refusal is an answer, not an error."""
    job = request.job
    snapshot = await snapshot_to_restore(desk, job, request.snapshot)
    if snapshot.deleting:
        raise Refused(f"snapshot {snapshot.snapshot} is being deleted", where=Where(job=job))
    files = await ask_program_files(desk, snapshot)
    planned = desk.control.plan(
        snapshot,
        files,
        explain=request.explain,
        cold_start=request.cold_start,
        old_addresses=old_addresses_of(request),
    )
    reply = operator_pb2.PlanReply(
        refused=[to_proto(each, records_pb2.NodeReasons) for each in planned.reasons],
        unseen=desk.control.unseen(job),
        fits=[to_proto(each, records_pb2.NodeFit) for each in planned.fits],
        restore_refused=[
            to_proto(each, records_pb2.NodeReasons) for each in planned.restore_refused
        ],
    )
    if planned.failure is not None:
        reply.failure.CopyFrom(to_proto(planned.failure, records_pb2.Failure))
    if planned.plan is not None:
        reply.plan.CopyFrom(to_proto(planned.plan, records_pb2.Plan))
        reply.plan.notes.extend(_kept_notes(desk, job, snapshot, request.snapshot))
    return reply


def _kept_notes(desk: Desk, job: str, snapshot: Snapshot, asked: str) -> list[str]:
    """What speaks against a snapshot, or for one that is not the newest."""
    notes = [f"the snapshot is damaged: {snapshot.damaged}"] if snapshot.damaged else []
    if snapshot.suspect:
        notes.append(f"the snapshot is suspect: {snapshot.suspect}")
    known = desk.control.job(job)
    latest = known.latest if known is not None else ""
    if not asked and latest and latest != snapshot.snapshot:
        damage = desk.control.damage(job, latest)
        what = "damaged" if damage else "suspect"
        why = damage or desk.control.suspicion(job, latest)
        notes.append(f"it is not the newest, which is {what}: {latest}: {why}")
    return notes


def _job_message(view: JobView) -> operator_pb2.JobView:
    return operator_pb2.JobView(
        job=to_proto(view.job, records_pb2.JobRecord),
        workers=_workers(view.workers),
        nodes=view.nodes,
        state=view.state,
        action=view.action,
        step=view.step,
        latest_unix_s=view.latest_unix_s,
        waiting=view.waiting,
        problems=view.problems,
        recovery=view.recovery,
    )


def _workers(workers: tuple[WorkerState, ...]) -> list[records_pb2.WorkerState]:
    return [to_proto(worker, records_pb2.WorkerState) for worker in workers]


async def list_jobs(desk: Desk) -> operator_pb2.ListJobsReply:
    """All jobs this leader knows."""
    return operator_pb2.ListJobsReply(jobs=[_job_message(view) for view in desk.control.jobs()])


def _node_message(view: NodeView) -> operator_pb2.NodeView:
    return operator_pb2.NodeView(
        facts=to_proto(view.facts, records_pb2.NodeFacts),
        state=view.state,
        workers=_workers(view.workers),
        reason=view.reason,
        drain=to_proto(view.drain, records_pb2.DrainRecord) if view.drain is not None else None,
        health=view.health,
    )


def list_nodes(desk: Desk, *, settled: bool) -> operator_pb2.ListNodesReply:
    """All nodes this leader has seen; raises NotReady if it is not `settled`, where that counts."""
    if settled and not desk.settled():
        raise NotReady(
            "the leader is new, and nodes may be on their way to it", advice="ask again in a minute"
        )
    return operator_pb2.ListNodesReply(nodes=[_node_message(view) for view in desk.control.nodes()])


async def list_snapshots(desk: Desk, job: str) -> operator_pb2.ListSnapshotsReply:
    """A job's snapshots, oldest first, without their workers; raises NotFound for no such job."""
    snapshots, damaged = await desk.store.listed(job)
    known = desk.control.job(job)
    if not snapshots and known is None:
        raise NotFound(f"there is no job {job}", advice="`allstop jobs` lists them")
    return operator_pb2.ListSnapshotsReply(
        snapshots=[to_proto(each, records_pb2.Snapshot) for each in snapshots],
        latest=known.latest if known is not None else "",
        problems=[*map(str, damaged), *desk.control.deletions(job)],
    )


async def show(desk: Desk, identity: str) -> operator_pb2.ShowReply:
    """Everything that has this id; raises NotFound when nothing has."""
    shown = await find(desk, identity)
    reply = operator_pb2.ShowReply()
    if shown.snapshot is not None:
        reply.snapshot.CopyFrom(to_proto(shown.snapshot, records_pb2.Snapshot))
    if shown.attempt is not None:
        reply.attempt.CopyFrom(to_proto(shown.attempt, records_pb2.AttemptRecord))
    if shown.restore is not None:
        reply.restore.CopyFrom(to_proto(shown.restore, records_pb2.RestoreRecord))
    if shown.timeline is not None:
        reply.timeline.CopyFrom(to_proto(shown.timeline, records_pb2.Timeline))
    if not reply.ListFields():
        raise NotFound(
            f"there is no snapshot, attempt or restore {identity}",
            advice="`allstop snapshots JOB` lists what can be restored",
        )
    return reply
