"""Straight-line code for each record class: to its message, from it, to JSON and from JSON.

Thousands of records come through here in one checkpoint, and a loop over the fields of a record
costs several times what the fields themselves do. So each class gets functions of its own, written
as source from its type hints and compiled when it is first met, as `dataclasses` does for
`__init__`. They take only what is as it should be: anything odd raises, and `codec` then takes the
slow way, which finds the field and says what is wrong with it.
"""

from __future__ import annotations

import types
from collections.abc import Callable
from dataclasses import dataclass, fields, is_dataclass
from enum import StrEnum
from functools import cache
from typing import Any, Union, get_args, get_origin, get_type_hints

from allstop.v1 import records_pb2
from google.protobuf.descriptor import FieldDescriptor

WIDE = frozenset(
    {FieldDescriptor.TYPE_INT64, FieldDescriptor.TYPE_UINT64}
)  # strings in proto JSON, since JavaScript has no such numbers
RANGES = {
    FieldDescriptor.TYPE_INT32: (-(2**31), 2**31 - 1),
    FieldDescriptor.TYPE_INT64: (-(2**63), 2**63 - 1),
    FieldDescriptor.TYPE_UINT64: (0, 2**64 - 1),
}


class Odd(Exception):
    """Not what this code was made for; the slow way knows what to do with it."""


@dataclass(frozen=True)
class Field:
    """How one field of a dataclass travels."""

    name: str
    inner: Any  # the type of one element where the field is a tuple
    many: bool
    optional: bool
    enum: bool  # what inner is
    record: bool


_plans: dict[Any, tuple[Field, ...]] = {}  # as many entries as there are dataclasses


def plan(cls: Any) -> tuple[Field, ...]:
    """The fields of a record class, in order."""
    if cls not in _plans:
        hints = get_type_hints(cls)
        _plans[cls] = tuple(_field(each.name, hints[each.name]) for each in fields(cls))
    return _plans[cls]


def _field(name: str, hint: Any) -> Field:
    optional = get_origin(hint) in (Union, types.UnionType)
    if optional:
        (hint,) = (each for each in get_args(hint) if each is not types.NoneType)
    many = get_origin(hint) is tuple
    inner = get_args(hint)[0] if many else hint
    return Field(name, inner, many, optional, issubclass(inner, StrEnum), is_dataclass(inner))


# -- enums -----------------------------------------------------------------------------------------


@cache
def prefix(enum: type) -> str:
    """`AttemptState` -> `ATTEMPT_STATE_`, proto3's way to keep enum values apart."""
    words = "".join(f"_{each}" if each.isupper() else each for each in enum.__name__)
    return f"{words.lstrip('_').upper()}_"


@cache
def names(enum: type[StrEnum]) -> dict[StrEnum, str]:
    """Each member's name on the wire."""
    return {member: f"{prefix(enum)}{member.name}" for member in enum}


@cache
def numbers(enum: type[StrEnum]) -> dict[StrEnum, int]:
    """Each member's number on the wire."""
    kind: Any = getattr(records_pb2, enum.__name__)
    return {member: kind.Value(name) for member, name in names(enum).items()}


@cache
def by_number(enum: type[StrEnum]) -> dict[int, StrEnum]:
    """The member of each number."""
    return {number: member for member, number in numbers(enum).items()}


@cache
def by_name(enum: type[StrEnum]) -> dict[str, StrEnum]:
    """The member of each name on the wire."""
    return {name: member for member, name in names(enum).items()}


# -- source ----------------------------------------------------------------------------------------


class _Source:
    """Source of one function, and the objects that it names."""

    def __init__(self, heading: str) -> None:
        self._lines = [heading]
        self._known: dict[str, Any] = {"Odd": Odd}

    def name(self, thing: Any, hint: str) -> str:
        """A name under which the function finds `thing`."""
        name = f"{hint}_{len(self._known)}"
        self._known[name] = thing
        return name

    def add(self, line: str) -> None:
        """One more line of its body."""
        self._lines.append(f"    {line}")

    def function(self, what: str) -> Any:
        """Compile it."""
        space: dict[str, Any] = dict(self._known)
        exec(compile("\n".join(self._lines), f"<allstop {what}>", "exec"), space)
        return space["run"]


def _each(field: Field, one: str, value: str) -> str:
    """An expression over a value or over each of many; `one` has the element as `e`."""
    if field.many:
        return f"[{one} for e in {value}]"
    return one.replace("(e)", f"({value})").replace("[e]", f"[{value}]")


@cache
def writer(cls: Any, message_class: Any) -> Callable[[Any], Any]:
    """A function from a record to its message."""
    source = _Source("def run(r):")
    parts = []
    for field in plan(cls):
        value = f"r.{field.name}"
        if field.record:
            inner = writer(field.inner, getattr(records_pb2, field.inner.__name__))
            value = _each(field, f"{source.name(inner, 'out')}(e)", value)
        elif field.enum:
            value = _each(field, f"{source.name(numbers(field.inner), 'number')}[e]", value)
        if field.optional and (field.record or field.enum):
            value = f"None if r.{field.name} is None else {value}"
        parts.append(f"{field.name}={value}")
    source.add(f"return {source.name(message_class, 'Message')}({', '.join(parts)})")
    return source.function(f"writer of {cls.__name__}")  # type: ignore[no-any-return]


@cache
def reader(cls: Any) -> Callable[[Any], Any]:
    """A function from a message to its record; raises KeyError for an unknown enum number."""
    source = _Source("def run(m):")
    parts = []
    for field in plan(cls):
        value = f"m.{field.name}"
        if field.record:
            value = _each(field, f"{source.name(reader(field.inner), 'into')}(e)", value)
        elif field.enum:
            value = _each(field, f"{source.name(by_number(field.inner), 'member')}[e]", value)
        if field.many:
            value = f"tuple({value})"
        if field.optional:
            value = f"{value} if m.HasField({field.name!r}) else None"
        parts.append(value)
    source.add(f"return {source.name(cls, 'Record')}({', '.join(parts)})")
    return source.function(f"reader of {cls.__name__}")  # type: ignore[no-any-return]


def _wire_types(cls: Any) -> dict[str, int]:
    descriptor = getattr(records_pb2, cls.__name__).DESCRIPTOR
    return {each.name: each.type for each in descriptor.fields}


@cache
def dumper(cls: Any) -> Callable[[Any], dict[str, Any]]:
    """A function from a record to what proto JSON holds of it: what is not the default.

    It raises Odd for a number that its message could not hold.
    """
    source = _Source("def run(r):")
    source.add("d = {}")
    types_of = _wire_types(cls)
    for field in plan(cls):
        source.add(f"v = r.{field.name}")
        value, test = "v", "if v: "
        if field.inner is int:
            low, high = RANGES[types_of[field.name]]
            every = "all(LOW <= e <= HIGH for e in v)" if field.many else "LOW <= v <= HIGH"
            every = every.replace("LOW", str(low)).replace("HIGH", str(high))
            source.add(f"if not ({every}): raise Odd")
        if field.record:
            value = _each(field, f"{source.name(dumper(field.inner), 'dump')}(e)", "v")
            test = "if v: " if field.many else "if v is not None: "
        elif field.enum:
            value = _each(field, f"{source.name(names(field.inner), 'name')}[e]", "v")
            test = "if v: " if field.many else ""
        elif types_of[field.name] in WIDE:
            value = _each(field, "str(e)", "v")
        elif field.inner is float:
            value = _each(field, f"{source.name(_float_out, 'number')}(e)", "v")
        source.add(f"{test}d[{field.name!r}] = {value}")
    source.add("return d")
    return source.function(f"dumper of {cls.__name__}")  # type: ignore[no-any-return]


def _float_out(value: float) -> float | str:
    if value - value == 0.0:
        return value
    return "NaN" if value != value else "Infinity" if value > 0 else "-Infinity"


@cache
def loader(cls: Any) -> Callable[[Any], Any]:
    """A function from what `dumper` gave to the record; raises Odd or KeyError for all else."""
    types_of = _wire_types(cls)
    steps = [
        (field.name, _taker(field, types_of[field.name]), field.many, _default(field))
        for field in plan(cls)
    ]
    known = frozenset(name for name, *_ in steps)

    def run(found: Any) -> Any:
        if type(found) is not dict or not known.issuperset(found):
            raise Odd
        values = []
        for name, take, many, default in steps:
            value = found.get(name, Odd)
            if value is Odd:
                value = default
            elif not many:
                value = take(value)
            elif type(value) is list:
                value = tuple([take(each) for each in value])
            else:
                raise Odd
            if value is Odd:
                raise Odd
            values.append(value)
        return cls(*values)

    return run


def _default(field: Field) -> Any:
    """What a field that is left out means; Odd where it may not be."""
    if field.many:
        return ()
    if field.optional:
        return None
    return Odd if field.record or field.enum else field.inner()


def _taker(field: Field, wire_type: int) -> Callable[[Any], Any]:
    """What makes one value out of its JSON."""
    if field.record:
        return loader(field.inner)
    if field.enum:
        return by_name(field.inner).__getitem__
    if field.inner is not int:
        return _typed(field.inner)
    low, high = RANGES[wire_type]
    wide = wire_type in WIDE

    def number(value: Any) -> int:
        kind: Any = type(value)
        if kind is not (str if wide else int):
            raise Odd
        found: int = _whole(value) if wide else value
        if not low <= found <= high:
            raise Odd
        return found

    return number


def _typed(kind: type) -> Callable[[Any], Any]:
    def same(value: Any) -> Any:
        if type(value) is not kind:
            raise Odd
        return value

    return same


def _whole(text: str) -> int:
    if not text.removeprefix("-").isdecimal() or not text.isascii():
        raise Odd
    return int(text)
