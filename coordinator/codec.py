"""Records of the core to messages of the wire and back, by field names and type hints.

A dataclass and its message have the same name and the same fields, so nothing is written twice and
no field can be forgotten. Enums lose their prefix: `Phase.HOLD` is `PHASE_HOLD` on the wire. etcd
holds proto JSON, so that a person with etcdctl can read it.

What is as it should be goes through the straight-line code of `compiling`. What raises there goes
field by field through the functions at the end of this file, which name the field at fault.
"""

from __future__ import annotations

import json
from enum import StrEnum
from typing import Any, TypeVar

import msgspec
from allstop.v1 import records_pb2
from google.protobuf import json_format
from google.protobuf.message import Message

from coordinator import compiling
from coordinator.compiling import Field, Odd, plan, prefix
from coordinator.core.errors import BadRequest, StoreError

Record = TypeVar("Record")
Member = TypeVar("Member", bound=StrEnum)


def to_proto(record: Any, message_class: type[Message] | None = None) -> Any:
    """Build the message of the same name (or of the class given) from a dataclass.

    Raises BadRequest naming the field when a value cannot be put on the wire: a number out of
    range, a string that is not valid Unicode.
    """
    cls: Any = type(record)
    chosen: Any = message_class or getattr(records_pb2, cls.__name__)
    try:
        return compiling.writer(cls, chosen)(record)
    except (ValueError, TypeError, KeyError, AttributeError):
        return _slowly_out(record, chosen)


def from_proto(message: Any, cls: type[Record]) -> Record:
    """Build the dataclass from a message that has its fields.

    Raises BadRequest naming the field when an enum is unset or has a number we do not know.
    """
    kind: Any = cls
    try:
        return compiling.reader(kind)(message)  # type: ignore[no-any-return]
    except KeyError:
        return _slowly_in(message, cls)


def number_of(member: StrEnum) -> Any:
    """The number of an enum's member on the wire; for fields outside of records."""
    return compiling.numbers(type(member))[member]


def member_of(enum: type[Member], number: int, field: str) -> Member:
    """The member that a number means; raises BadRequest naming the field when there is none."""
    member = compiling.by_number(enum).get(number)
    if member is None:
        what = "is not set" if number == 0 else f"has the unknown number {number}"
        raise BadRequest(f"{field} {what}")
    return member  # type: ignore[return-value]


def encode(record: Any) -> bytes:
    """The value that etcd holds for a record: proto JSON on one line, fields as in the proto.

    Raises BadRequest naming the field when a value cannot be put on the wire.
    """
    cls: Any = type(record)
    try:
        return msgspec.json.encode(compiling.dumper(cls)(record))
    except (Odd, ValueError, TypeError, KeyError, AttributeError):
        text = json_format.MessageToJson(
            to_proto(record), preserving_proto_field_name=True, indent=None, ensure_ascii=False
        )
        return text.encode()


def decode(cls: type[Record], data: bytes, key: str) -> Record:
    """Read back what `encode` wrote.

    Raises StoreError naming the key when the value is damaged, is not ours, or holds fields that
    this version does not know: writing such a record again would lose them.
    """
    kind: Any = cls
    try:
        return compiling.loader(kind)(msgspec.json.decode(data))  # type: ignore[no-any-return]
    except (Odd, KeyError, TypeError, ValueError, RecursionError):
        return _slowly_decoded(cls, data, key)


# -- the slow way ----------------------------------------------------------------------------------


def _slowly_decoded(cls: type[Record], data: bytes, key: str) -> Record:
    message = getattr(records_pb2, cls.__name__)()
    try:
        parsed = json.loads(data.decode())
        if not isinstance(parsed, dict):
            raise ValueError("it is no JSON object")  # protobuf takes [] for an empty message
        json_format.ParseDict(parsed, message)
        return _slowly_in(message, cls)
    except (ValueError, json_format.ParseError, BadRequest, RecursionError) as error:
        raise StoreError(
            f"the value of {key} in the store is not a {cls.__name__} of this version: {error}",
            advice=f"look at it with `etcdctl get {key}`; if it is not allstop's, delete it",
        ) from error


def _slowly_out(record: Any, chosen: Any) -> Any:
    values: dict[str, Any] = {}
    for field in plan(type(record)):
        value = getattr(record, field.name)
        if value is None:
            continue
        if field.enum or field.record:
            value = (
                [_value_out(field, each) for each in value]
                if field.many
                else _value_out(field, value)
            )
        values[field.name] = value
    try:
        return chosen(**values)
    except (ValueError, TypeError) as error:
        raise BadRequest(_which_field(chosen, values, error)) from error


def _slowly_in(message: Any, cls: type[Record]) -> Record:
    values: dict[str, Any] = {}
    for field in plan(cls):
        if field.optional and not message.HasField(field.name):
            values[field.name] = None
            continue
        value = getattr(message, field.name)
        if not (field.enum or field.record):
            values[field.name] = tuple(value) if field.many else value
        elif field.many:
            values[field.name] = tuple([_value_in(message, field, each) for each in value])
        else:
            values[field.name] = _value_in(message, field, value)
    return cls(**values)


def _value_out(field: Field, value: Any) -> Any:
    if field.record:
        return _slowly_out(value, getattr(records_pb2, type(value).__name__))
    return f"{prefix(field.inner)}{value.name}" if isinstance(value, StrEnum) else value


def _value_in(message: Message, field: Field, value: Any) -> Any:
    if field.enum:
        of = f"{field.name} of {message.DESCRIPTOR.name}"
        member: StrEnum = member_of(field.inner, value, of)
        return member
    return _slowly_in(value, field.inner)


def _which_field(chosen: Any, values: dict[str, Any], error: Exception) -> str:
    """Find the field at fault, since protobuf's own message does not name it."""
    for name, value in values.items():
        try:
            chosen(**{name: value})
        except (ValueError, TypeError) as own:
            return f"{name} of {chosen.DESCRIPTOR.name} cannot be sent: {own}"
    return f"{chosen.DESCRIPTOR.name} cannot be sent: {error}"
