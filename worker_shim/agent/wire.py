"""The stream's messages as plain values and back; the one place of the shim that knows protobuf.

Records travel by field names and type hints: a dataclass of the core and its message have the same
fields. Enums lose their prefix: `Phase.HOLD` is `PHASE_HOLD` on the wire.
"""

from __future__ import annotations

import types
from dataclasses import fields, is_dataclass
from enum import StrEnum
from functools import cache
from typing import Any, Union, get_args, get_origin, get_type_hints

from allstop.v1 import records_pb2, shim_pb2

from coordinator.core.errors import AllstopError, BadRequest, Where
from coordinator.core.model import (
    AddressMove,
    Cut,
    Endpoint,
    Failure,
    NodeFacts,
    Phase,
    ProgramFile,
    WorkerRecord,
    WorkerState,
)
from worker_shim.agent.order import Order, Outcome

_PHASES = frozenset(records_pb2.Phase.values())


def failure_of(error: AllstopError) -> Failure:
    """The error as it travels."""
    return Failure(
        kind=type(error).__name__,
        what=error.what,
        job=error.where.job,
        worker=-1 if error.where.worker is None else error.where.worker,
        rank=-1 if error.where.rank is None else error.where.rank,
        node=error.where.node,
        phase=error.where.phase,
        advice=error.advice,
        definite=error.definite,
        details=error.details,
    )


def to_message(record: Any) -> Any:
    """A dataclass of the core as the message of its name."""
    message = getattr(records_pb2, type(record).__name__)
    values: dict[str, Any] = {}
    for field in fields(record):
        value = getattr(record, field.name)
        if value is not None:
            values[field.name] = (
                [_out(each) for each in value] if isinstance(value, tuple) else _out(value)
            )
    return message(**values)


def from_message(message: Any, cls: Any) -> Any:
    """The dataclass with the message's fields; raises BadRequest for an enum that is not set."""
    return cls(**{name: _in(message, name, hint) for name, hint in _hints(cls)})


def _out(value: Any) -> Any:
    if isinstance(value, StrEnum):
        return f"{_prefix(type(value))}{value.name}"
    return to_message(value) if is_dataclass(value) else value


def _in(message: Any, name: str, hint: Any) -> Any:
    if get_origin(hint) in (Union, types.UnionType):
        if not message.HasField(name):
            return None
        hint = next(each for each in get_args(hint) if each is not types.NoneType)
    value = getattr(message, name)
    if get_origin(hint) is tuple:
        inner = get_args(hint)[0]
        return tuple(from_message(each, inner) if is_dataclass(inner) else each for each in value)
    if isinstance(hint, type) and issubclass(hint, StrEnum):
        return _enum(message, name, value, hint)
    return from_message(value, hint) if is_dataclass(hint) else value


def _enum(message: Any, name: str, number: int, enum: type[StrEnum]) -> StrEnum:
    known = message.DESCRIPTOR.fields_by_name[name].enum_type.values_by_number.get(number)
    member = known.name.removeprefix(_prefix(enum)) if known is not None else ""
    if member not in enum.__members__:
        raise BadRequest(f"{name} of {message.DESCRIPTOR.name} has the unknown number {number}")
    return enum[member]


@cache
def _prefix(enum: type[StrEnum]) -> str:
    words = "".join(f"_{letter}" if letter.isupper() else letter for letter in enum.__name__)
    return f"{words.lstrip('_').upper()}_"


@cache
def _hints(cls: Any) -> tuple[tuple[str, Any], ...]:
    hints = get_type_hints(cls)
    return tuple((field.name, hints[field.name]) for field in fields(cls))


def order_of(message: shim_pb2.Order) -> Order:
    """The order as a plain value; raises BadRequest when its detail does not fit its phase."""
    phase = _enum(message, "phase", message.phase, Phase)
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
        if field.name == "record":
            value = from_message(value, WorkerRecord) if detail.HasField("record") else None
        elif field.name == "cut":
            value = _enum(detail, "cut", value, Cut)
        elif field.name == "addresses":
            value = tuple(from_message(each, AddressMove) for each in value)
        elif field.name == "connections":
            value = tuple(from_message(each, Endpoint) for each in value)
        values[field.name] = value
    return Order(
        epoch=message.epoch,
        job=message.job,
        worker=message.worker,
        action=message.action,
        phase=Phase(phase),
        deadline_s=message.deadline_ms / 1000,
        hold_s=message.hold_ms / 1000,
        **values,
    )


def result_message(order: Order, outcome: Outcome) -> shim_pb2.ShimMessage:
    """An outcome as the answer to this order."""
    result = shim_pb2.OrderResult(
        epoch=order.epoch,
        job=order.job,
        worker=order.worker,
        action=order.action,
        phase=_out(order.phase),
        took_ms=outcome.took_ms,
        ranks=[to_message(rank) for rank in outcome.ranks],
        findings=[to_message(finding) for finding in outcome.findings],
        held_ms=outcome.held_ms,
        root_pid=outcome.root_pid,
        note=outcome.note,
    )
    if outcome.failure is not None:
        result.failure.CopyFrom(to_message(outcome.failure))
    if outcome.record is not None:
        result.record.CopyFrom(to_message(outcome.record))
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
            failure=to_message(failure_of(error)),
        )
    )


def hello_message(
    facts: NodeFacts, workers: tuple[WorkerState, ...], *, highest_epoch: int, session: str
) -> shim_pb2.ShimMessage:
    """The first message of a stream."""
    return shim_pb2.ShimMessage(
        hello=shim_pb2.Hello(
            facts=to_message(facts),
            highest_epoch=highest_epoch,
            workers=[to_message(worker) for worker in workers],
            session=session,
        )
    )


def report_message(
    workers: tuple[WorkerState, ...], facts: NodeFacts | None
) -> shim_pb2.ShimMessage:
    """How the workers are, and the node's facts when they changed."""
    report = shim_pb2.Report(workers=[to_message(worker) for worker in workers])
    if facts is not None:
        report.facts.CopyFrom(to_message(facts))
    return shim_pb2.ShimMessage(report=report)


def exited_message(state: WorkerState, log_tail: str) -> shim_pb2.ShimMessage:
    """The end of a worker."""
    return shim_pb2.ShimMessage(
        exited=shim_pb2.WorkerExited(
            job=state.job,
            worker=state.worker,
            incarnation=state.incarnation,
            exit_code=state.exit_code,
            log_tail=log_tail,
        )
    )


def progress_message(order: Order, done_bytes: int, total_bytes: int) -> shim_pb2.ShimMessage:
    """How far a long order is."""
    return shim_pb2.ShimMessage(
        progress=shim_pb2.Progress(
            job=order.job,
            worker=order.worker,
            action=order.action,
            phase=_out(order.phase),
            done_bytes=done_bytes,
            total_bytes=total_bytes,
        )
    )


def answer_message(question: int, facts: NodeFacts) -> shim_pb2.ShimMessage:
    """The answer to the planner's question about program files."""
    return shim_pb2.ShimMessage(answer=shim_pb2.Answer(question=question, facts=to_message(facts)))


def files_asked(question: shim_pb2.Question) -> tuple[ProgramFile, ...]:
    """The files that a question names."""
    return tuple(from_message(file, ProgramFile) for file in question.files)
