"""Records of the core to messages of the wire and back, by field names and type hints.

A dataclass and its message have the same name and the same fields, so nothing is written twice and
no field can be forgotten. Enums lose their prefix: `Phase.HOLD` is `PHASE_HOLD` on the wire. etcd
holds proto JSON, so that a person with etcdctl can read it.
"""

from __future__ import annotations

import json
import types
from dataclasses import dataclass, fields, is_dataclass
from enum import StrEnum
from functools import cache
from typing import Any, TypeVar, Union, get_args, get_origin, get_type_hints

from allstop.v1 import records_pb2
from google.protobuf import json_format
from google.protobuf.message import Message

from coordinator.core.errors import BadRequest, StoreError

Record = TypeVar("Record")
Member = TypeVar("Member", bound=StrEnum)


@dataclass(frozen=True)
class _Field:
    """How one field of a dataclass travels."""

    name: str
    inner: type  # of one element where the field is a tuple
    many: bool
    optional: bool
    enum: bool  # what inner is, looked up once: thousands of answers a second come through here
    record: bool


def to_proto(record: Any, message_class: type[Message] | None = None) -> Any:
    """Build the message of the same name (or of the class given) from a dataclass.

    Raises BadRequest naming the field when a value cannot be put on the wire: a number out of
    range, a string that is not valid Unicode.
    """
    cls = type(record)
    chosen: Any = message_class or getattr(records_pb2, cls.__name__)
    values: dict[str, Any] = {}
    for field in _plan(cls):
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


def from_proto(message: Any, cls: type[Record]) -> Record:
    """Build the dataclass from a message that has its fields.

    Raises BadRequest naming the field when an enum is unset or has a number we do not know.
    """
    values: dict[str, Any] = {}
    for field in _plan(cls):
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


def number_of(member: StrEnum) -> Any:
    """The number of an enum's member on the wire; for fields outside of records."""
    return _enum_type(type(member)).Value(f"{_prefix(type(member))}{member.name}")


def member_of(enum: type[Member], number: int, field: str) -> Member:
    """The member that a number means; raises BadRequest naming the field when there is none."""
    known = _enum_type(enum).DESCRIPTOR.values_by_number.get(number)
    member = known.name.removeprefix(_prefix(enum)) if known is not None else ""
    if member not in enum.__members__:
        what = "is not set" if number == 0 else f"has the unknown number {number}"
        raise BadRequest(f"{field} {what}")
    return enum[member]


def _enum_type(enum: type[StrEnum]) -> Any:
    return getattr(records_pb2, enum.__name__)


def encode(record: Any) -> bytes:
    """The value that etcd holds for a record: proto JSON on one line, fields as in the proto."""
    text = json_format.MessageToJson(
        to_proto(record), preserving_proto_field_name=True, indent=None, ensure_ascii=False
    )
    return text.encode()


def decode(cls: type[Record], data: bytes, key: str) -> Record:
    """Read back what `encode` wrote.

    Raises StoreError naming the key when the value is damaged, is not ours, or holds fields that
    this version does not know: writing such a record again would lose them.
    """
    message = getattr(records_pb2, cls.__name__)()
    try:
        parsed = json.loads(data.decode())
        if not isinstance(parsed, dict):
            raise ValueError("it is no JSON object")  # protobuf takes [] for an empty message
        json_format.ParseDict(parsed, message)
        return from_proto(message, cls)
    except (ValueError, json_format.ParseError, BadRequest, RecursionError) as error:
        raise StoreError(
            f"the value of {key} in the store is not a {cls.__name__} of this version: {error}",
            advice=f"look at it with `etcdctl get {key}`; if it is not allstop's, delete it",
        ) from error


def _value_out(field: _Field, value: Any) -> Any:
    if field.record:
        return to_proto(value)
    return f"{_prefix(field.inner)}{value.name}" if isinstance(value, StrEnum) else value


def _value_in(message: Message, field: _Field, value: Any) -> Any:
    if issubclass(field.inner, StrEnum):  # tells mypy what field.enum tells us
        enum = message.DESCRIPTOR.fields_by_name[field.name].enum_type
        known = enum.values_by_number.get(value) if enum is not None else None
        member = known.name.removeprefix(_prefix(field.inner)) if known is not None else ""
        if member not in field.inner.__members__:
            what = "is not set" if value == 0 else f"has the unknown number {value}"
            raise BadRequest(f"{field.name} of {message.DESCRIPTOR.name} {what}")
        return field.inner[member]
    return from_proto(value, field.inner)


def _which_field(chosen: Any, values: dict[str, Any], error: Exception) -> str:
    """Find the field at fault, since protobuf's own message does not name it."""
    for name, value in values.items():
        try:
            chosen(**{name: value})
        except (ValueError, TypeError) as own:
            return f"{name} of {chosen.DESCRIPTOR.name} cannot be sent: {own}"
    return f"{chosen.DESCRIPTOR.name} cannot be sent: {error}"


@cache
def _prefix(enum: type) -> str:
    """`AttemptState` -> `ATTEMPT_STATE_`, proto3's way to keep enum values apart."""
    words = "".join(f"_{each}" if each.isupper() else each for each in enum.__name__)
    return f"{words.lstrip('_').upper()}_"


_plans: dict[Any, tuple[_Field, ...]] = {}  # as many entries as there are dataclasses


def _plan(cls: Any) -> tuple[_Field, ...]:
    if cls not in _plans:
        hints = get_type_hints(cls)
        _plans[cls] = tuple(_field(each.name, hints[each.name]) for each in fields(cls))
    return _plans[cls]


def _field(name: str, hint: Any) -> _Field:
    optional = get_origin(hint) in (Union, types.UnionType)
    if optional:
        (hint,) = (each for each in get_args(hint) if each is not types.NoneType)
    many = get_origin(hint) is tuple
    inner = get_args(hint)[0] if many else hint
    return _Field(name, inner, many, optional, issubclass(inner, StrEnum), is_dataclass(inner))
