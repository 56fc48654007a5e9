"""Editing protobuf messages without their definitions, field by field.

Only the wire format is known here (https://protobuf.dev/programming-guides/encoding/). What is
not touched keeps its very bytes and its order, so a message of a newer CRIU survives.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

VARINT, FIXED64, BYTES, FIXED32 = 0, 1, 2, 5
FIXED_SIZES = {FIXED64: 8, FIXED32: 4}
VARINT_BYTES_MAX = 10


class WireError(ValueError):
    """The bytes are no protobuf message."""


@dataclass(frozen=True)
class Field:
    """One field as it stands in the message: number, wire type, raw content without its length."""

    number: int
    kind: int
    raw: bytes

    @property
    def value(self) -> int:
        """The number in a varint field; raises WireError for any other kind."""
        if self.kind != VARINT:
            raise WireError(f"field {self.number} has wire type {self.kind}, not a varint")
        return read_varint(self.raw, 0)[0]

    def numbers(self) -> tuple[int, ...]:
        """The numbers in a varint field, or in a packed repeated one."""
        if self.kind == VARINT:
            return (self.value,)
        if self.kind != BYTES:
            raise WireError(f"field {self.number} holds no varints (wire type {self.kind})")
        found, at = [], 0
        while at < len(self.raw):
            number, at = read_varint(self.raw, at)
            found.append(number)
        return tuple(found)


def number_field(number: int, value: int) -> Field:
    """A varint field."""
    return Field(number, VARINT, write_varint(value))


def bytes_field(number: int, raw: bytes) -> Field:
    """A string, bytes or message field."""
    return Field(number, BYTES, raw)


def read_varint(data: bytes, at: int) -> tuple[int, int]:
    """The number at `at`, and where it ends; raises WireError."""
    number = 0
    for index in range(VARINT_BYTES_MAX):
        if at + index >= len(data):
            raise WireError("the message ends inside a number")
        byte = data[at + index]
        number |= (byte & 0x7F) << (7 * index)
        if byte < 0x80:
            return number, at + index + 1
    raise WireError("a number is longer than ten bytes")


def write_varint(number: int) -> bytes:
    """The shortest encoding of a number that is not negative."""
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)


def read_message(data: bytes) -> Iterator[Field]:
    """The fields in their order; raises WireError when the bytes are cut off or no message."""
    at = 0
    while at < len(data):
        key, at = read_varint(data, at)
        number, kind = key >> 3, key & 7
        if number == 0:
            raise WireError("field number 0")
        if kind == VARINT:
            start = at
            _, at = read_varint(data, at)
        elif kind == BYTES:
            length, start = read_varint(data, at)
            at = start + length
        elif kind in FIXED_SIZES:
            start, at = at, at + FIXED_SIZES[kind]
        else:
            raise WireError(f"wire type {kind} in field {number}")
        if at > len(data):
            raise WireError(f"the message ends inside field {number}")
        yield Field(number, kind, data[start:at])


def write_message(fields: Iterable[Field]) -> bytes:
    """The bytes of a message made of these fields, in this order."""
    out = bytearray()
    for field in fields:
        out += write_varint(field.number << 3 | field.kind)
        if field.kind == BYTES:
            out += write_varint(len(field.raw))
        out += field.raw
    return bytes(out)
