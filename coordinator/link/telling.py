"""What shims tell unasked, as the core's events: ends of workers, notices."""

from __future__ import annotations

from allstop.v1 import shim_pb2

from coordinator.core import drain_events, events
from coordinator.core.errors import BadRequest, Where


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
}


def told_event(
    node: str, message: shim_pb2.ShimMessage
) -> events.WorkerExited | drain_events.NoticeGiven:
    """What a shim tells unasked as the core's event; raises BadRequest."""
    if message.HasField("notice"):
        return notice_event(node, message.notice)
    return exit_event(node, message.exited)


def notice_event(node: str, message: shim_pb2.NoticeGiven) -> drain_events.NoticeGiven:
    """What somebody has told a shim as the core's event; raises BadRequest for no kind of ours."""
    kind = _NOTICES.get(message.kind)
    if kind is None:
        raise BadRequest(f"kind {message.kind} of NoticeGiven is not known", where=Where(node=node))
    return drain_events.NoticeGiven(node, kind, message.deadline_ms / 1000, message.why)
