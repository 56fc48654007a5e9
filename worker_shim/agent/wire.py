"""The stream's messages as plain values and back; the one place of the shim that knows protobuf.

Records travel by field names and type hints: a dataclass of the core and its message have the same
fields. Enums lose their prefix: `Phase.HOLD` is `PHASE_HOLD` on the wire.
"""

from __future__ import annotations

from typing import Any

from allstop.v1 import logs_pb2, records_pb2, shim_pb2

from coordinator.codec import from_proto, member_of, number_of, to_proto
from coordinator.core.errors import AllstopError, BadRequest, Where
from coordinator.core.failures import failure_of
from coordinator.core.logs import LogPart, LogPlace
from coordinator.core.model import (
    AddressMove,
    Cut,
    Endpoint,
    GpuMove,
    NodeFacts,
    Phase,
    ProgramFile,
    WorkerRecord,
    WorkerState,
)
from worker_shim.agent.order import Order, Outcome

_PHASES = frozenset(records_pb2.Phase.values())


def order_of(message: shim_pb2.Order) -> Order:
    """The order as a plain value; raises BadRequest when its detail does not fit its phase."""
    phase = member_of(Phase, message.phase, "phase of Order")
    kind = message.WhichOneof("detail")
    if kind is not None and kind != phase.value.lower():
        raise BadRequest(
            f"an order to {phase} came with the detail of {kind}",
            where=Where(job=message.job, worker=message.worker, phase=phase.value),
        )
    detail: Any = getattr(message, kind) if kind is not None else None
    values: dict[str, Any] = {}
    for field in detail.DESCRIPTOR.fields if detail is not None else ():
        value = getattr(detail, field.name)
        if field.name == "stand_still_ms":
            values["stand_still_s"] = value / 1000
            continue
        if field.name == "record":
            value = from_proto(value, WorkerRecord) if detail.HasField("record") else None
        elif field.name == "cut":
            value = member_of(Cut, value, f"cut of {detail.DESCRIPTOR.name}")
        elif field.name == "addresses":
            value = tuple(from_proto(each, AddressMove) for each in value)
        elif field.name == "connections":
            value = tuple(from_proto(each, Endpoint) for each in value)
        elif field.name == "devices":
            value = tuple(from_proto(each, GpuMove) for each in value)
        values[field.name] = value
    return Order(
        epoch=message.epoch,
        job=message.job,
        worker=message.worker,
        action=message.action,
        phase=Phase(phase),
        deadline_s=message.deadline_ms / 1000,
        hold_s=message.hold_ms / 1000,
        traceparent=message.traceparent,
        **values,
    )


def result_message(order: Order, outcome: Outcome) -> shim_pb2.ShimMessage:
    """An outcome as the answer to this order."""
    result = shim_pb2.OrderResult(
        epoch=order.epoch,
        job=order.job,
        worker=order.worker,
        action=order.action,
        phase=number_of(order.phase),
        took_ms=outcome.took_ms,
        ranks=[to_proto(rank) for rank in outcome.ranks],
        findings=[to_proto(finding) for finding in outcome.findings],
        held_ms=outcome.held_ms,
        root_pid=outcome.root_pid,
        note=outcome.note,
        gpu=outcome.gpu,
        laps=[to_proto(lap) for lap in outcome.laps],
        arrivals=[to_proto(arrival) for arrival in outcome.arrivals],
        files=[to_proto(file) for file in outcome.files],
        files_unnamed=outcome.files_unnamed,
    )
    if outcome.failure is not None:
        result.failure.CopyFrom(to_proto(outcome.failure))
    if outcome.record is not None:
        result.record.CopyFrom(to_proto(outcome.record))
    return shim_pb2.ShimMessage(result=result)


def refusal_message(order: shim_pb2.Order, error: AllstopError) -> shim_pb2.ShimMessage:
    """The answer to an order that was not begun, perhaps because it makes no sense."""
    known = records_pb2.Phase.Name(order.phase) if order.phase in _PHASES else ""
    error.at(phase=known.removeprefix("PHASE_"))
    return shim_pb2.ShimMessage(
        result=shim_pb2.OrderResult(
            epoch=order.epoch,
            job=order.job,
            worker=order.worker,
            action=order.action,
            phase=order.phase,
            failure=to_proto(failure_of(error)),
        )
    )


def hello_message(
    facts: NodeFacts,
    workers: tuple[WorkerState, ...],
    *,
    highest_epoch: int,
    session: str,
    number: int,
) -> shim_pb2.ShimMessage:
    """What a leader hears first; `number` counts the Hellos of this process."""
    return shim_pb2.ShimMessage(
        hello=shim_pb2.Hello(
            facts=to_proto(facts),
            highest_epoch=highest_epoch,
            workers=[to_proto(worker) for worker in workers],
            session=session,
            number=number,
        )
    )


def report_message(
    workers: tuple[WorkerState, ...], facts: NodeFacts | None
) -> shim_pb2.ShimMessage:
    """How the workers are, and the node's facts when they changed."""
    report = shim_pb2.Report(workers=[to_proto(worker) for worker in workers])
    if facts is not None:
        report.facts.CopyFrom(to_proto(facts))
    return shim_pb2.ShimMessage(report=report)


def exited_message(state: WorkerState, log_tail: str, step: int = 0) -> shim_pb2.ShimMessage:
    """The end of a worker, whose furthest rank had finished `step`."""
    return shim_pb2.ShimMessage(
        exited=shim_pb2.WorkerExited(
            job=state.job,
            worker=state.worker,
            incarnation=state.incarnation,
            exit_code=state.exit_code,
            log_tail=log_tail,
            step=step,
        )
    )


def progress_message(order: Order, done_bytes: int, total_bytes: int) -> shim_pb2.ShimMessage:
    """How far a long order is."""
    return shim_pb2.ShimMessage(
        progress=shim_pb2.Progress(
            job=order.job,
            worker=order.worker,
            action=order.action,
            phase=number_of(order.phase),
            done_bytes=done_bytes,
            total_bytes=total_bytes,
        )
    )


def answer_message(question: int, facts: NodeFacts) -> shim_pb2.ShimMessage:
    """The answer to the planner's question about program files."""
    return shim_pb2.ShimMessage(answer=shim_pb2.Answer(question=question, facts=to_proto(facts)))


def log_answer_message(question: int, parts: tuple[LogPart, ...]) -> shim_pb2.ShimMessage:
    """The answer to a question about output."""
    told = [to_proto(part, logs_pb2.LogPart) for part in parts]
    return shim_pb2.ShimMessage(log=shim_pb2.LogAnswer(question=question, parts=told))


def places_asked(question: shim_pb2.LogQuestion) -> tuple[LogPlace, ...]:
    """The places that a question about output names."""
    return tuple(from_proto(place, LogPlace) for place in question.places)


def files_asked(question: shim_pb2.Question) -> tuple[ProgramFile, ...]:
    """The files that a question names."""
    return tuple(from_proto(file, ProgramFile) for file in question.files)
