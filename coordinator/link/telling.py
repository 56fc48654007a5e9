"""What shims tell unasked, as the core's events: ends of workers, notices, trouble of GPUs."""

from __future__ import annotations

from allstop.v1 import shim_pb2

from coordinator.codec import from_proto
from coordinator.core import commands, drain_events, events, health_events
from coordinator.core.errors import BadRequest, Where
from coordinator.core.health_records import GpuTrouble


def exit_event(node: str, message: shim_pb2.WorkerExited) -> events.WorkerExited:
    """The end of a worker as the core's event."""
    return events.WorkerExited(
        node=node,
        job=message.job,
        worker=message.worker,
        incarnation=message.incarnation,
        exit_code=message.exit_code,
        log_tail=message.log_tail,
        step=message.step,
    )


_NOTICES: dict[int, drain_events.NoticeKind] = {
    shim_pb2.NOTICE_KIND_DRAIN: drain_events.NoticeKind.DRAIN,
    shim_pb2.NOTICE_KIND_CHECKPOINT: drain_events.NoticeKind.CHECKPOINT,
    shim_pb2.NOTICE_KIND_STOP: drain_events.NoticeKind.STOP,
    shim_pb2.NOTICE_KIND_END: drain_events.NoticeKind.END,
}


def told_event(
    node: str, message: shim_pb2.ShimMessage
) -> events.WorkerExited | drain_events.NoticeGiven | health_events.GpuTroubleTold:
    """What a shim tells unasked as the core's event; raises BadRequest."""
    if message.HasField("notice"):
        return notice_event(node, message.notice)
    if message.HasField("troubles"):
        told = tuple(from_proto(each, GpuTrouble) for each in message.troubles.troubles)
        return health_events.GpuTroubleTold(node, told)
    return exit_event(node, message.exited)


def notice_event(node: str, message: shim_pb2.NoticeGiven) -> drain_events.NoticeGiven:
    """What somebody has told a shim as the core's event; raises BadRequest for no kind of ours."""
    kind = _NOTICES.get(message.kind)
    if kind is None:
        raise BadRequest(f"kind {message.kind} of NoticeGiven is not known", where=Where(node=node))
    return drain_events.NoticeGiven(node, kind, message.deadline_ms / 1000, message.why)


def notice_refused_message(refusal: commands.RefuseNotice) -> shim_pb2.CoordinatorMessage:
    """Tell a shim that what it was told asks for more than can be done."""
    kind = next(number for number, kind in _NOTICES.items() if kind is refusal.kind)
    refused = shim_pb2.NoticeRefused(
        kind=kind,  # type: ignore[arg-type]
        reason=refusal.reason,
        again=refusal.again,
    )
    return shim_pb2.CoordinatorMessage(refused=refused)


def stay_message(epoch: int, stay: commands.StayOn) -> shim_pb2.CoordinatorMessage:
    """Tell a shim not to leave yet."""
    told = shim_pb2.Stay(epoch=epoch, job=stay.job, for_ms=round(stay.for_s * 1000))
    return shim_pb2.CoordinatorMessage(stay=told)
