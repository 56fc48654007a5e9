"""Requests about how snapshots are kept: delete, collect, pin, retention."""

from __future__ import annotations

from allstop.v1 import operator_pb2, records_pb2

from coordinator.api.desk import Desk
from coordinator.api.identity import CLEANING, chosen_id, cleaning_id
from coordinator.api.reading import find
from coordinator.codec import from_proto, to_proto
from coordinator.core import events, retention
from coordinator.core.errors import BadRequest, NotFound
from coordinator.core.kept import Retention
from coordinator.core.model import Snapshot
from coordinator.link.names import check_name

SNAPSHOTS_MAX = 1_000  # of one deletion
WHY_CHARS_MAX = 1_000
WHY_PINNED = "an operator wants to keep it"


def deletion(desk: Desk, request: operator_pb2.DeleteRequest) -> events.DeletionRequested:
    """What a DeleteRequest asks of the core; raises BadRequest."""
    check_name("job", request.job)
    names = tuple(dict.fromkeys(request.snapshots))
    if not 0 < len(names) <= SNAPSHOTS_MAX:
        raise BadRequest(f"{len(names)} snapshots, and a deletion may have 1 to {SNAPSHOTS_MAX}")
    cleaning = _cleaning(desk, request.job, request.cleaning)
    return events.DeletionRequested(request.job, cleaning, names, request.force)


def collection(desk: Desk, request: operator_pb2.CollectRequest) -> events.CollectionRequested:
    """What a CollectRequest asks of the core; raises NotFound for a job that nobody knows."""
    check_name("job", request.job)
    require_job(desk, request.job)
    return events.CollectionRequested(
        request.job,
        _cleaning(desk, request.job, request.cleaning),
        dry_run=request.dry_run,
        unknown=request.unknown,
    )


def _cleaning(desk: Desk, job: str, chosen: str) -> str:
    return chosen_id(CLEANING, job, chosen) or cleaning_id(job, desk.unix())


def require_job(desk: Desk, job: str) -> None:
    """Raise NotFound for a job that this leader does not know."""
    if desk.control.job(job) is None:
        raise NotFound(f"there is no job {job}", advice="`allstop jobs` lists them")


async def found(desk: Desk, snapshot: str) -> Snapshot:
    """The snapshot of that id, whichever job's; raises NotFound."""
    shown = await find(desk, snapshot)
    if shown.snapshot is None:
        raise NotFound(
            f"there is no snapshot {snapshot}", advice="`allstop snapshots JOB` lists them"
        )
    return shown.snapshot


async def pin(desk: Desk, request: operator_pb2.PinRequest) -> operator_pb2.PinReply:
    """Pin a snapshot or take the pin away; raises NotFound, and Refused while it is deleted."""
    if len(request.why) > WHY_CHARS_MAX:
        raise BadRequest(
            f"a reason of {len(request.why)} characters, and it may have {WHY_CHARS_MAX}"
        )
    snapshot = await found(desk, request.snapshot)
    why = "" if request.unpin else request.why or WHY_PINNED
    changed = await desk.store.set_pin(snapshot.job, snapshot.snapshot, why, desk.unix())
    desk.tell(events.SnapshotChanged(changed))
    return operator_pb2.PinReply(snapshot=to_proto(changed, records_pb2.Snapshot))


async def set_retention(
    desk: Desk, request: operator_pb2.SetRetentionRequest
) -> operator_pb2.SetRetentionReply:
    """Change which snapshots of a job stay, or tell; says what goes by it now."""
    check_name("job", request.job)
    require_job(desk, request.job)
    wanted = request.HasField("retention")
    policy = from_proto(request.retention, Retention) if wanted else None
    if not request.change:
        policy = desk.control.retention(request.job)
    elif policy is not None:
        retention.check(policy)
    going = desk.control.going(request.job, policy)
    if request.change:
        await desk.store.set_retention(request.job, policy)
        desk.tell(events.RetentionChanged(request.job, policy))
    reply = operator_pb2.SetRetentionReply(
        going=[operator_pb2.Going(snapshot=each.snapshot, why=each.why) for each in going]
    )
    if policy is not None:
        reply.retention.CopyFrom(to_proto(policy, records_pb2.Retention))
    return reply
