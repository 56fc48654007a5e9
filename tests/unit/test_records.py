"""Each dataclass of the core has a message with the same fields and types, and loses nothing."""

import inspect
import json
import types
from dataclasses import fields, is_dataclass, replace
from enum import StrEnum
from typing import Any, Union, get_args, get_origin, get_type_hints

import pytest
from allstop.v1 import operator_pb2, records_pb2
from google.protobuf import json_format
from google.protobuf.descriptor import FieldDescriptor
from hypothesis import given, settings
from hypothesis import strategies as st

from coordinator.codec import decode, encode, from_proto, to_proto
from coordinator.core import (
    drain_records,
    files,
    health_records,
    job_policy,
    kept,
    model,
    reasons,
    timelines,
)
from coordinator.core.errors import BadRequest, StoreError

RECORDS = [
    cls
    for module in (
        drain_records,
        files,
        health_records,
        job_policy,
        kept,
        model,
        reasons,
        timelines,
    )
    for _, cls in inspect.getmembers(module, is_dataclass)
    if cls.__module__ == module.__name__
]
ENUMS = [
    cls
    for module in (drain_records, health_records, job_policy, model)
    for _, cls in inspect.getmembers(module, inspect.isclass)
    if issubclass(cls, StrEnum) and cls.__module__ == module.__name__
]
SCALARS = {
    FieldDescriptor.TYPE_STRING: str,
    FieldDescriptor.TYPE_BOOL: bool,
    FieldDescriptor.TYPE_DOUBLE: float,
    FieldDescriptor.TYPE_INT32: int,
    FieldDescriptor.TYPE_INT64: int,
    FieldDescriptor.TYPE_UINT64: int,
}
RANGES = {
    FieldDescriptor.TYPE_INT32: (-(2**31), 2**31 - 1),
    FieldDescriptor.TYPE_INT64: (-(2**63), 2**63 - 1),
    FieldDescriptor.TYPE_UINT64: (0, 2**64 - 1),
}


def message_of(cls: type) -> Any:
    return getattr(records_pb2, cls.__name__)


def inner_of(hint: Any) -> tuple[Any, bool]:
    """The type of one element, and whether there are many."""
    if get_origin(hint) in (Union, types.UnionType):
        hint = next(each for each in get_args(hint) if each is not types.NoneType)
    if get_origin(hint) is tuple:
        return get_args(hint)[0], True
    return hint, False


@pytest.mark.parametrize("cls", RECORDS, ids=lambda cls: cls.__name__)
def test_message_has_the_same_fields_and_types(cls: type) -> None:
    descriptor = message_of(cls).DESCRIPTOR
    assert [each.name for each in fields(cls)] == [each.name for each in descriptor.fields]
    hints = get_type_hints(cls)
    for field in descriptor.fields:
        inner, many = inner_of(hints[field.name])
        assert field.is_repeated == many, field.name
        if field.type == FieldDescriptor.TYPE_MESSAGE:
            assert field.message_type.name == inner.__name__
        elif field.type == FieldDescriptor.TYPE_ENUM:
            assert field.enum_type.name == inner.__name__
        else:
            assert SCALARS[field.type] is inner, field.name


@pytest.mark.parametrize("cls", ENUMS, ids=lambda cls: cls.__name__)
def test_enum_has_the_same_members_and_an_unset_one(cls: type[StrEnum]) -> None:
    names = list(records_pb2.DESCRIPTOR.enum_types_by_name[cls.__name__].values_by_name)
    prefix = names[0].removesuffix("UNSPECIFIED")
    assert names[0].endswith("UNSPECIFIED")
    assert [name.removeprefix(prefix) for name in names[1:]] == [each.name for each in cls]


def test_every_record_message_has_a_dataclass() -> None:
    assert set(records_pb2.DESCRIPTOR.message_types_by_name) == {cls.__name__ for cls in RECORDS}


def values(cls: type) -> st.SearchStrategy[Any]:
    """Random instances of a record, numbers over the whole range of their wire type."""
    hints = get_type_hints(cls)
    parts = {}
    for field in message_of(cls).DESCRIPTOR.fields:
        inner, many = inner_of(hints[field.name])
        if is_dataclass(inner):
            one = st.deferred(lambda inner=inner: values(inner))
        elif issubclass(inner, StrEnum):
            one = st.sampled_from(inner)
        elif inner is int:
            one = st.integers(*RANGES[field.type])
        elif inner is float:
            one = st.floats(allow_nan=False)
        else:
            one = st.booleans() if inner is bool else st.text(max_size=5)
        if many:
            one = st.lists(one, max_size=2).map(tuple)
        elif type(None) in get_args(hints[field.name]):
            one = st.none() | one
        parts[field.name] = one
    return st.builds(cls, **parts)


@pytest.mark.parametrize("cls", RECORDS, ids=lambda cls: cls.__name__)
@settings(max_examples=20, deadline=None)
@given(data=st.data())
def test_round_trip_loses_nothing(cls: type, data: st.DataObject) -> None:
    record = data.draw(values(cls))
    assert from_proto(to_proto(record), cls) == record
    assert decode(cls, encode(record), "/key") == record


@pytest.mark.parametrize("cls", RECORDS, ids=lambda cls: cls.__name__)
@settings(max_examples=10, deadline=None)
@given(data=st.data())
def test_what_is_stored_is_proto_json(cls: type, data: st.DataObject) -> None:
    record = data.draw(values(cls))
    message = json_format.Parse(encode(record), message_of(cls)())
    assert from_proto(message, cls) == record
    written = json_format.MessageToJson(message, preserving_proto_field_name=True)
    assert decode(cls, written.encode(), "/key") == record


def plain(cls: type) -> Any:
    """One instance with something in every field."""
    hints = get_type_hints(cls)
    made = {}
    for field in fields(cls):
        inner, many = inner_of(hints[field.name])
        if is_dataclass(inner):
            one = plain(inner)
        elif issubclass(inner, StrEnum):
            one = next(iter(inner))
        else:
            one = {int: 7, float: 0.5, bool: True, str: "text"}[inner]
        made[field.name] = (one,) if many else one
    return cls(**made)


ODD = [
    *(None, True, -1, 2**40, 2**70, 1.5, "", "7", "-7", "+7", " 7", "1_0", "\u0667", "x"),
    *([], [None], ["7"], [7], [[]], {}, {"a": 1}, "AttemptState", "ATTEMPT_STATE_UNSPECIFIED"),
]


@pytest.mark.parametrize("cls", RECORDS, ids=lambda cls: cls.__name__)
def test_odd_values_are_read_as_protobuf_reads_them(cls: type) -> None:
    stored = json.loads(encode(plain(cls)))
    for name in [*(each.name for each in fields(cls)), "color"]:
        for odd in ODD:
            value = json.dumps({**stored, name: odd}).encode()
            try:
                expected = from_proto(json_format.Parse(value, message_of(cls)()), cls)
            except (json_format.ParseError, BadRequest):
                with pytest.raises(StoreError, match="/key"):
                    decode(cls, value, "/key")
            else:
                assert decode(cls, value, "/key") == expected, (name, odd)


JOB = model.JobRecord("llm", 2, 4, 1, "s1")


def test_stored_value_is_readable_json() -> None:
    expected = '{"job":"llm","workers":2,"world_size":4,"incarnation":1,"latest":"s1"}'
    assert encode(JOB).decode() == expected


@pytest.mark.parametrize(
    "data", [b"", b"\xff\xfe", b"[]", b'{"job": 3}', b'{"job": "llm", "color": "red"}', b"{" * 5000]
)
def test_damaged_value_is_named_by_its_key(data: bytes) -> None:
    with pytest.raises(StoreError, match="/allstop/jobs/llm") as caught:
        decode(model.JobRecord, data, "/allstop/jobs/llm")
    assert "etcdctl get /allstop/jobs/llm" in caught.value.advice


def test_unset_and_unknown_enums_are_refused_by_field() -> None:
    message = to_proto(model.Finding(model.Severity.WARN, "io_uring", "text"))
    message.ClearField("severity")
    with pytest.raises(BadRequest, match="severity of Finding is not set"):
        from_proto(message, model.Finding)
    message.severity = 77
    with pytest.raises(BadRequest, match="severity of Finding has the unknown number 77"):
        from_proto(message, model.Finding)


def test_value_that_does_not_fit_is_named_by_field() -> None:
    with pytest.raises(BadRequest, match="world_size of JobRecord"):
        to_proto(replace(JOB, world_size=2**31))
    with pytest.raises(BadRequest, match="path of ProgramFile"):
        to_proto(model.ProgramFile("/bin/\udcff", 1))


def test_what_cannot_be_sent_cannot_be_stored() -> None:
    for size in (2**31, -(2**31) - 1):
        with pytest.raises(BadRequest, match="world_size of JobRecord"):
            encode(replace(JOB, world_size=size))
    with pytest.raises(BadRequest, match="path of ProgramFile"):
        encode(model.ProgramFile("/bin/\udcff", 1))
    with pytest.raises(BadRequest, match="size_bytes of ProgramFile"):
        encode(model.ProgramFile("/bin/true", 2**64))


def test_another_message_class_with_the_same_fields_can_be_filled() -> None:
    node = reasons.NodeReasons("n0", 1, ("too small",))
    reply = operator_pb2.PlanReply(refused=[to_proto(node)])
    assert from_proto(reply.refused[0], reasons.NodeReasons) == node
    assert to_proto(node, records_pb2.NodeReasons) == reply.refused[0]
