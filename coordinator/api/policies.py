"""A job's policy: what an operator sets, and the numbers behind what it leads to."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import replace

from allstop.v1 import operator_pb2, records_pb2

from coordinator.api.desk import Desk
from coordinator.codec import from_proto, to_proto
from coordinator.core import events
from coordinator.core.errors import NotFound, StoreError, Where
from coordinator.core.job_policy import JobPolicy, OnFailure, RecoveryState, StoryLine, check
from coordinator.core.model import AttemptRecord, RestoreRecord
from coordinator.link.names import check_name
from coordinator.store.port import ENDED_ATTEMPT, ENDED_RESTORE

WRITE_DEADLINE_S = 15.0
DOWN = frozenset({"incomplete", "exited", "unknown"})


async def set_policy(
    desk: Desk, request: operator_pb2.SetPolicyRequest
) -> operator_pb2.PolicyReply:
    """Put a policy into the store, then tell the core; the job need not have begun yet.

    Raises BadRequest for what makes no sense. Asking again after a lost answer changes nothing. A
    crash between the two leaves it to the next leader, which reads the store.
    """
    asked = from_proto(request.policy, JobPolicy)
    check_name("job", asked.job)
    policy = check(replace(asked, set_unix_s=desk.unix()))
    try:
        async with asyncio.timeout(WRITE_DEADLINE_S):
            await desk.store.put_policy(policy)
    except TimeoutError:
        raise StoreError(
            "the store did not answer in time",
            where=Where(job=policy.job),
            definite=False,
            advice=f"`allstop policy {policy.job}` shows what counts now",
        ) from None
    desk.tell(events.PolicyChanged(policy))
    return _reply(desk, policy.job, policy)


async def get_policy(
    desk: Desk, request: operator_pb2.GetPolicyRequest
) -> operator_pb2.PolicyReply:
    """What counts now; raises NotFound for a job that is not there and has no policy."""
    check_name("job", request.job)
    found = desk.control.explain_policy(request.job).policy
    if not found.acts and desk.control.job(request.job) is None:
        raise NotFound(f"there is no job {request.job}", advice="`allstop jobs` lists them")
    return _reply(desk, request.job, None)


def _reply(desk: Desk, job: str, policy: JobPolicy | None) -> operator_pb2.PolicyReply:
    """`policy`: one that has just been set and is on its way to the core."""
    told = desk.control.explain_policy(job, policy)
    reply = operator_pb2.PolicyReply(
        policy=to_proto(told.policy, records_pb2.JobPolicy),
        history=to_proto(told.history, records_pb2.JobHistory),
        checkpoint_s=told.costs.checkpoint_s,
        latency_s=told.costs.latency_s,
        restart_s=told.costs.restart_s,
        attempt_s=told.costs.attempt_s,
        due_in_s=told.due_in_s,
        waits=told.waits,
        note=_note(desk, told.policy),
    )
    if told.interval is not None:
        reply.interval_s = told.interval.seconds
        reply.mtbf_s = told.interval.mtbf_s
        reply.young_s = told.interval.young_s
        reply.daly_s = told.interval.daly_s
        reply.bound = told.interval.bound
        reply.lost_s_per_day = told.interval.lost_s_per_day
    return reply


def _note(desk: Desk, policy: JobPolicy) -> str:
    """That a job which was never seen whole is not brought back by itself."""
    never = desk.control.recovery(policy.job).state is RecoveryState.UNSEEN
    view = next((view for view in desk.control.jobs() if view.job.job == policy.job), None)
    if policy.on_failure is OnFailure.LEAVE or not never or view is None or view.state not in DOWN:
        return ""
    return (
        f"the job is {view.state}, and is brought back by itself only once it was seen whole: "
        f"`allstop restore {policy.job}` brings it back now"
    )


async def get_story(desk: Desk, request: operator_pb2.GetStoryRequest) -> operator_pb2.StoryReply:
    """What was done for a job by itself, and why: recoveries, and the checkpoints that were due.

    Raises NotFound for a job that is not there and has no story. Of attempts and restores those
    that this leader remembers; the recovery's own lines outlive leaders.
    """
    check_name("job", request.job)
    recovery = desk.control.recovery(request.job)
    lines = [*recovery.story, *_lines(desk, request.job)]
    if not lines and desk.control.job(request.job) is None:
        raise NotFound(f"there is no job {request.job}", advice="`allstop jobs` lists them")
    lines.sort(key=lambda line: line.unix_s)
    return operator_pb2.StoryReply(
        recovery=to_proto(recovery, records_pb2.JobRecovery),
        lines=[to_proto(line, records_pb2.StoryLine) for line in lines],
    )


def _lines(desk: Desk, job: str) -> Iterator[StoryLine]:
    """Of attempts and restores: when they were asked for, why, and how they ended."""
    for attempt in desk.control.attempts():
        if attempt.job == job:
            yield from _told(attempt, attempt.attempt, f"checkpoint {attempt.attempt}")
    for restore in desk.control.restores():
        if restore.job == job:
            what = f"restore {restore.restore} of {restore.snapshot}"
            yield from _told(restore, restore.restore, what)


def _told(record: AttemptRecord | RestoreRecord, name: str, what: str) -> Iterator[StoryLine]:
    began = record.requested_unix_s
    yield StoryLine(began, f"{what}: {record.cause or 'an operator asked for it'}")
    if record.state in ENDED_ATTEMPT | ENDED_RESTORE:
        ends = [(t.started_ms + t.took_ms) / 1000 for t in record.timings]
        ended = f"{name} {record.state}: {record.reason}"
        yield StoryLine(began + max(ends, default=0.0), ended)
