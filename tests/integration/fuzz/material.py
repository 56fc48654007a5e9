"""Random protobuf messages of any kind, their bytes damaged or not, and names that exist or not."""

from __future__ import annotations

from typing import Any

from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass
from hypothesis import strategies as st

EDGES_32 = [-(2**31), -1, 0, 1, 2, 7, 2**16, 2**31 - 1]
EDGES_64 = [*EDGES_32, 2**31, 2**53, 2**62, 2**63 - 1, -(2**63)]
EDGES_U = [0, 1, 2, 7, 2**31, 2**32 - 1]
EDGES_U64 = [*EDGES_U, 2**53, 2**63, 2**64 - 1]
FLOATS = [0.0, -0.0, 1.0, -1.0, 1e9, 1e308, float("inf"), float("-inf"), float("nan"), 5e-324]
NAMES = [
    "", "llm", "other", "node-0", "node-1", "evil", "../etc", "a/b", "a\0b", ".", "x" * 64,
    "x" * 300, "läufer", "🦭", "HOLD", "running", "exited", "held", "restored", "llm-1",
]  # fmt: skip
REPEATED_MAX = 3
DEPTH_MAX = 5


def texts(*more: str) -> st.SearchStrategy[str]:
    """Names that mean something, and ones that cannot."""
    return st.sampled_from([*NAMES, *more]) | st.text(max_size=20)


def messages(kind: type[Any], *known: str) -> st.SearchStrategy[Any]:
    """Any message of a kind; every field may be set, unset, at an edge, or a name that is known."""
    return _of(kind.DESCRIPTOR, texts(*known), DEPTH_MAX)


@st.composite
def _of(draw: Any, descriptor: Descriptor, names: Any, depth: int) -> Message:
    message: Any = GetMessageClass(descriptor)()
    chosen = {group.name: draw(st.sampled_from(list(group.fields))) for group in descriptor.oneofs}
    for field in descriptor.fields:
        group = field.containing_oneof
        if (group is not None and chosen[group.name] is not field) or not draw(st.booleans()):
            continue
        if field.message_type is not None and depth == 0:
            continue
        if field.is_repeated:
            values = draw(st.lists(_value(field, names, depth), max_size=REPEATED_MAX))
            getattr(message, field.name).extend(values)
        elif field.message_type is not None:
            getattr(message, field.name).CopyFrom(draw(_value(field, names, depth)))
        else:
            setattr(message, field.name, draw(_value(field, names, depth)))
    return message


def _value(field: FieldDescriptor, names: Any, depth: int) -> st.SearchStrategy[Any]:
    of = FieldDescriptor
    if field.message_type is not None:
        return _of(field.message_type, names, depth - 1)
    simple = {
        of.TYPE_STRING: names,
        of.TYPE_BYTES: st.binary(max_size=64),
        of.TYPE_BOOL: st.booleans(),
    }
    if field.type in simple:
        return simple[field.type]
    if field.type == of.TYPE_ENUM:
        known = [value.number for value in field.enum_type.values]
        return st.sampled_from([*known, -1, 99, 2**31 - 1])
    if field.type == of.TYPE_DOUBLE:
        return st.sampled_from(FLOATS) | st.floats()
    if field.type == of.TYPE_INT32:
        return st.sampled_from(EDGES_32) | st.integers(-(2**31), 2**31 - 1)
    if field.type == of.TYPE_INT64:
        return st.sampled_from(EDGES_64) | st.integers(-(2**63), 2**63 - 1)
    if field.type == of.TYPE_UINT32:
        return st.sampled_from(EDGES_U) | st.integers(0, 2**32 - 1)
    if field.type == of.TYPE_UINT64:
        return st.sampled_from(EDGES_U64) | st.integers(0, 2**64 - 1)
    raise AssertionError(f"no values for {field.full_name} of type {field.type}")


@st.composite
def damaged(draw: Any, message: st.SearchStrategy[Message]) -> bytes:
    """The bytes of a message with some changed, cut off, doubled or put in between."""
    data = bytearray(draw(message).SerializeToString())
    for _ in range(draw(st.integers(1, 4))):
        at = draw(st.integers(0, len(data)))
        match draw(st.sampled_from(["change", "cut", "insert", "double"])):
            case "change" if at < len(data):
                data[at] = draw(st.integers(0, 255))
            case "cut":
                del data[at:]
            case "insert":
                data[at:at] = draw(st.binary(max_size=8))
            case "double":
                data += data[:at]
    return bytes(data)
