"""Messages of the shim stream as the core's events, and the core's commands as messages.

Nothing is decided here. The node of an event is the stream's, never what the message says, so a
shim cannot speak for another node.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from allstop.v1 import logs_pb2, records_pb2, shim_pb2

from coordinator.codec import from_proto, member_of, number_of, to_proto
from coordinator.core import commands, events
from coordinator.core.errors import BadRequest, Where
from coordinator.core.files import FileBack
from coordinator.core.kept import KeptImages
from coordinator.core.logs import LogPart, LogPlace
from coordinator.core.model import (
    Failure,
    Finding,
    NodeFacts,
    Phase,
    ProgramFile,
    RankState,
    WorkerRecord,
    WorkerState,
)
from coordinator.link.names import check_name
from coordinator.telemetry.spans import traceparent

TASK_BYTES_MAX = 12 << 20  # of the 16 MiB that a shim takes in one message

# -- orders --------------------------------------------------------------------------------------


def _record(order: commands.SendOrder) -> records_pb2.WorkerRecord:
    if order.record is None:
        raise BadRequest(
            f"an order to {order.phase} needs the worker's record",
            where=Where(job=order.job, worker=order.worker, node=order.node, phase=order.phase),
        )
    message: records_pb2.WorkerRecord = to_proto(order.record)
    return message


def _hold(order: commands.SendOrder, message: shim_pb2.Order) -> None:
    message.hold.cut = number_of(order.cut)
    message.hold.world_size = order.world_size
    message.hold.stand_still_ms = round(order.stand_still_s * 1000)


def _park(order: commands.SendOrder, message: shim_pb2.Order) -> None:
    message.park.target = order.target


def _dump(order: commands.SendOrder, message: shim_pb2.Order) -> None:
    message.dump.cut = number_of(order.cut)


def _persist(order: commands.SendOrder, message: shim_pb2.Order) -> None:
    message.persist.base = order.base
    message.persist.SetInParent()


def _undo(order: commands.SendOrder, message: shim_pb2.Order) -> None:
    message.undo.reason = order.reason
    message.undo.kill = order.kill
    message.undo.keep = order.keep
    message.undo.tear_down = order.tear_down


def _stop(order: commands.SendOrder, message: shim_pb2.Order) -> None:
    message.stop.stay = order.stay
    message.stop.SetInParent()


def _fetch(order: commands.SendOrder, message: shim_pb2.Order) -> None:
    message.fetch.record.CopyFrom(_record(order))
    message.fetch.cold = order.cold


def _clear(order: commands.SendOrder, message: shim_pb2.Order) -> None:
    message.clear.SetInParent()
    if order.record is not None:  # absent: a worker of the old incarnation with no new place here
        message.clear.record.CopyFrom(_record(order))
    message.clear.connections.extend(
        to_proto(connection, records_pb2.Endpoint) for connection in order.connections
    )


def _restore(order: commands.SendOrder, message: shim_pb2.Order) -> None:
    message.restore.record.CopyFrom(_record(order))
    message.restore.addresses.extend(
        to_proto(move, records_pb2.AddressMove) for move in order.addresses
    )
    message.restore.incarnation = order.incarnation
    message.restore.workers = order.workers


def _gpu_lock(order: commands.SendOrder, message: shim_pb2.Order) -> None:
    message.gpu_lock.cut = number_of(order.cut)


def _gpu_restore(order: commands.SendOrder, message: shim_pb2.Order) -> None:
    message.gpu_restore.devices.extend(
        to_proto(move, records_pb2.GpuMove) for move in order.devices
    )
    message.gpu_restore.SetInParent()


_DETAIL: dict[Phase, Callable[[commands.SendOrder, shim_pb2.Order], None]] = {
    Phase.HOLD: _hold,
    Phase.PARK: _park,
    Phase.DUMP: _dump,
    Phase.RESUME: lambda order, message: message.resume.SetInParent(),
    Phase.PERSIST: _persist,
    Phase.STOP: _stop,
    Phase.UNDO: _undo,
    Phase.FETCH: _fetch,
    Phase.CLEAR: _clear,
    Phase.RESTORE: _restore,
    Phase.GPU_LOCK: _gpu_lock,
    Phase.GPU_RESTORE: _gpu_restore,
    Phase.RELEASE: lambda order, message: message.release.SetInParent(),
}


def order_message(order: commands.SendOrder) -> shim_pb2.CoordinatorMessage:
    """One order as it goes to the shim."""
    message = shim_pb2.CoordinatorMessage()
    body = message.order
    body.epoch = order.epoch
    body.job = order.job
    body.worker = order.worker
    body.action = order.action
    body.phase = number_of(order.phase)
    body.deadline_ms = max(1, round(order.deadline_s * 1000))
    body.hold_ms = max(0, round(order.hold_s * 1000))
    body.traceparent = traceparent(order.action, order.phase)
    detail = _DETAIL.get(order.phase)
    if detail is not None:
        detail(order, body)
    return message


def fence_message(
    epoch: int, reason: str, workers: tuple[WorkerState, ...] = ()
) -> shim_pb2.CoordinatorMessage:
    """Tell a shim that these workers of its may not go on."""
    message = shim_pb2.CoordinatorMessage()
    message.fenced.epoch = epoch
    message.fenced.reason = reason
    message.fenced.workers.extend(to_proto(worker, records_pb2.WorkerState) for worker in workers)
    return message


def admitted_message(epoch: int, admission: commands.AdmitWorker) -> shim_pb2.CoordinatorMessage:
    """Tell a shim in which incarnation its worker is the job's."""
    return shim_pb2.CoordinatorMessage(
        admitted=shim_pb2.Admitted(
            epoch=epoch,
            job=admission.job,
            worker=admission.worker,
            incarnation=admission.incarnation,
        )
    )


def waiting_message(epoch: int, deferral: commands.DeferWorker) -> shim_pb2.CoordinatorMessage:
    """Tell a shim why its worker is not the job's yet."""
    return shim_pb2.CoordinatorMessage(
        waiting=shim_pb2.Waiting(
            epoch=epoch, job=deferral.job, worker=deferral.worker, reason=deferral.reason
        )
    )


def welcome_message(
    epoch: int, coordinator: str, report_interval_ms: int
) -> shim_pb2.CoordinatorMessage:
    """The answer to Hello."""
    return shim_pb2.CoordinatorMessage(
        welcome=shim_pb2.Welcome(
            epoch=epoch, coordinator=coordinator, report_interval_ms=report_interval_ms
        )
    )


def question_message(number: int, files: tuple[ProgramFile, ...]) -> shim_pb2.CoordinatorMessage:
    """Ask a shim which of these files its node has."""
    message = shim_pb2.CoordinatorMessage()
    message.question.question = number
    message.question.files.extend(to_proto(file, records_pb2.ProgramFile) for file in files)
    return message


def log_question_message(
    number: int, job: str, places: Sequence[LogPlace]
) -> shim_pb2.CoordinatorMessage:
    """Ask a shim for the output of its workers."""
    wanted = [to_proto(place, logs_pb2.LogPlace) for place in places]
    question = shim_pb2.LogQuestion(question=number, job=job, places=wanted)
    return shim_pb2.CoordinatorMessage(log=question)


def task_message(task: commands.SendTask) -> shim_pb2.CoordinatorMessage:
    """Have a shim list, or with `dead` collect, attempts in the image store."""
    message = shim_pb2.CoordinatorMessage(task=_task(task.epoch, task.task, task.job))
    message.task.deadline_ms = _milliseconds(task.deadline_s)
    if task.dead:
        message.task.collect.dead.extend(task.dead)
        message.task.collect.keep.extend(_kept(each) for each in task.keep)
        message.task.collect.dry_run = task.dry_run
    else:
        message.task.list.SetInParent()
    return _sendable(message)


def verify_message(
    epoch: int,
    task: str,
    job: str,
    images: KeptImages,
    others: Sequence[KeptImages],
    deadline_s: float,
) -> shim_pb2.CoordinatorMessage:
    """Have a shim read one worker's images again."""
    message = shim_pb2.CoordinatorMessage(task=_task(epoch, task, job))
    message.task.deadline_ms = _milliseconds(deadline_s)
    message.task.verify.images.CopyFrom(_kept(images))
    message.task.verify.others.extend(_kept(each) for each in others)
    return _sendable(message)


def cancel_message(epoch: int, task: str, job: str) -> shim_pb2.CoordinatorMessage:
    """Have a shim stop a task."""
    message = shim_pb2.CoordinatorMessage(task=_task(epoch, task, job))
    message.task.cancel.SetInParent()
    return message


def _task(epoch: int, task: str, job: str) -> shim_pb2.StoreTask:
    return shim_pb2.StoreTask(epoch=epoch, task=task, job=job)


def _milliseconds(seconds: float) -> int:
    return max(1, round(seconds * 1000))


def _kept(images: KeptImages) -> records_pb2.KeptImages:
    return records_pb2.KeptImages(place=images.place, digest=images.digest)


def _sendable(message: shim_pb2.CoordinatorMessage) -> shim_pb2.CoordinatorMessage:
    size = message.ByteSize()
    if size > TASK_BYTES_MAX:
        raise BadRequest(
            f"a task about the image store of job {message.task.job} has {size} bytes, and may "
            f"have {TASK_BYTES_MAX}",
            where=Where(job=message.task.job),
            advice="the job has too many snapshots times workers: delete some at a time",
        )
    return message


# -- what shims say ------------------------------------------------------------------------------


def facts_of(message: records_pb2.NodeFacts) -> NodeFacts:
    """A node's facts."""
    return from_proto(message, NodeFacts)


def log_parts_of(answer: shim_pb2.LogAnswer) -> tuple[LogPart, ...]:
    """Pieces of output."""
    return tuple(from_proto(part, LogPart) for part in answer.parts)


def workers_of(messages: Iterable[records_pb2.WorkerState]) -> tuple[WorkerState, ...]:
    """Worker states out of a repeated field."""
    return tuple(from_proto(message, WorkerState) for message in messages)


def is_older(hello: shim_pb2.Hello, session: str, number: int) -> bool:
    """Whether a Hello was said before Hello `number` of `session`.

    Two streams of one shim can come to us in either order. Of two shim processes that follow each
    other it is not known: what comes later counts, and the stream of the dead one is lost soon.
    """
    return hello.session == session and hello.number < number


def check_report(node: str, report: shim_pb2.Report) -> None:
    """Raise BadRequest for names that cannot be, and for facts of another node: a broken shim's."""
    for worker in report.workers:
        check_name("job", worker.job)
    if report.HasField("facts") and report.facts.node != node:
        raise BadRequest(
            f"the stream of node {node} reported facts of node {report.facts.node}",
            where=Where(node=node),
        )


def report_event(node: str, session: str, report: shim_pb2.Report) -> events.NodeReported:
    """A report as the core's event; raises as `check_report`."""
    check_report(node, report)
    facts = facts_of(report.facts) if report.HasField("facts") else None
    return events.NodeReported(node, session, workers_of(report.workers), facts)


def task_event(node: str, result: shim_pb2.StoreTaskResult) -> events.TaskAnswered:
    """What came of a task about the image store as the core's event."""
    failed = result.HasField("failure")
    return events.TaskAnswered(
        epoch=result.epoch,
        node=node,
        task=result.task,
        failure=from_proto(result.failure, Failure) if failed else None,
        attempts=tuple(result.attempts),
        objects=result.objects,
        freed_bytes=result.freed_bytes,
    )


_Place = tuple[int, str, str, int, str]  # epoch, node, job, worker, action
_Answer = Callable[[_Place, shim_pb2.OrderResult], events.OrderAnswered]


def _ranks(result: shim_pb2.OrderResult) -> tuple[RankState, ...]:
    return tuple(from_proto(rank, RankState) for rank in result.ranks)


def _findings(result: shim_pb2.OrderResult) -> tuple[Finding, ...]:
    return tuple(from_proto(finding, Finding) for finding in result.findings)


def _worker_record(result: shim_pb2.OrderResult) -> WorkerRecord:
    if not result.HasField("record"):
        raise BadRequest(
            "the shim answered without the worker's record",
            where=Where(job=result.job, worker=result.worker),
            definite=False,
        )
    return from_proto(result.record, WorkerRecord)


_ANSWER: dict[Phase, _Answer] = {
    Phase.HOLD: lambda at, result: events.Held(
        *at, ranks=_ranks(result), findings=_findings(result), gpu=result.gpu
    ),
    Phase.PARK: lambda at, result: events.Parked(*at, ranks=_ranks(result)),
    Phase.GPU_LOCK: lambda at, result: events.GpuLocked(*at),
    Phase.GPU_SAVE: lambda at, result: events.GpuSaved(*at),
    Phase.DUMP: lambda at, result: events.Dumped(*at, record=_worker_record(result)),
    Phase.RESUME: lambda at, result: events.Resumed(*at, held_ms=result.held_ms),
    Phase.PERSIST: lambda at, result: events.Persisted(*at, record=_worker_record(result)),
    Phase.STOP: lambda at, result: events.Stopped(*at),
    Phase.UNDO: lambda at, result: events.Undone(*at, held_ms=result.held_ms),
    Phase.FETCH: lambda at, result: events.Fetched(*at),
    Phase.CLEAR: lambda at, result: events.Cleared(*at),
    Phase.RESTORE: lambda at, result: events.Restored(
        *at,
        root_pid=result.root_pid,
        files=tuple(from_proto(file, FileBack) for file in result.files),
        files_unnamed=result.files_unnamed,
    ),
    Phase.GPU_RESTORE: lambda at, result: events.GpuRestored(*at),
    Phase.GPU_UNLOCK: lambda at, result: events.GpuUnlocked(*at),
    Phase.OPEN: lambda at, result: events.Opened(*at),
    Phase.RELEASE: lambda at, result: events.Released(*at),
}


def result_event(node: str, result: shim_pb2.OrderResult) -> events.OrderAnswered:
    """A shim's answer to an order as the core's event; raises BadRequest for one nobody ordered."""
    phase = member_of(Phase, result.phase, "phase of OrderResult")
    if phase not in _ANSWER:
        raise BadRequest(
            f"the shim answered an order that does not exist (phase {result.phase})",
            where=Where(job=result.job, worker=result.worker, node=node),
        )
    place: _Place = (result.epoch, node, result.job, result.worker, result.action)
    if result.HasField("failure"):
        return events.OrderFailed(*place, phase=phase, failure=from_proto(result.failure, Failure))
    try:
        return _ANSWER[phase](place, result)
    except BadRequest as error:
        failure = Failure(
            kind="DriverError",
            what=error.what,
            job=result.job,
            worker=result.worker,
            node=node,
            phase=phase,
            definite=False,
        )
        return events.OrderFailed(*place, phase=phase, failure=failure)
