"""Entries of CRIU's images as what a reader asks of them: fields by number, inner messages, texts.

An entry knows its file, so that whatever is wrong in it, however deep, names that file.
Numbers of fields are those of CRIU's `images/*.proto`.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from coordinator.core.errors import DriverError
from worker_shim.criu.image_file import read_first, read_image
from worker_shim.criu.wire import BYTES, Field, WireError, read_message

Result = TypeVar("Result")


class Entry:
    """One message of an image file."""

    __slots__ = ("_fields", "path")

    def __init__(self, path: Path, raw: bytes) -> None:
        """Take the message apart; raises DriverError naming the file when it is none."""
        self.path = path
        self._fields: dict[int, list[Field]] = defaultdict(list)
        try:
            for field in read_message(raw):
                self._fields[field.number].append(field)
        except WireError as error:
            raise damaged(path, str(error)) from error

    def has(self, number: int) -> bool:
        """Whether the field is there; protobuf leaves out what has its default."""
        return number in self._fields

    def number(self, number: int, default: int = 0) -> int:
        """The last value of a number field, as protobuf has it."""
        found = self._fields.get(number)
        return self._checked(lambda: found[-1].value) if found else default

    def numbers(self, number: int) -> tuple[int, ...]:
        """A repeated number field, packed or not."""
        found = self._fields.get(number, ())
        return self._checked(lambda: tuple(each for field in found for each in field.numbers()))

    def raw(self, number: int) -> bytes:
        """A field of bytes; empty when it is not there."""
        found = self._fields.get(number)
        if not found:
            return b""
        self._require_bytes(found[-1])
        return found[-1].raw

    def text(self, number: int) -> str:
        """A string to show; what of a path is no Unicode is written as \\xNN."""
        return self.raw(number).decode(errors="backslashreplace")

    def inner(self, number: int) -> Entry | None:
        """The message in a field; None when it is not there."""
        return Entry(self.path, self.raw(number)) if self.has(number) else None

    def inners(self, number: int) -> tuple[Entry, ...]:
        """The messages in a repeated field."""
        found = self._fields.get(number, ())
        for field in found:
            self._require_bytes(field)
        return tuple(Entry(self.path, field.raw) for field in found)

    def _require_bytes(self, field: Field) -> None:
        if field.kind != BYTES:
            raise damaged(self.path, f"field {field.number} has wire type {field.kind}, not bytes")

    def _checked(self, read: Callable[[], Result]) -> Result:
        try:
            return read()
        except WireError as error:
            raise damaged(self.path, str(error)) from error


def read_entries(path: Path, magic: int) -> tuple[Entry, ...]:
    """Every entry of an image; raises DriverError when it is missing or damaged."""
    return tuple(Entry(path, raw) for raw in read_image(path, magic).entries)


def only_entry(path: Path, magic: int) -> Entry:
    """The entry of an image that has one; raises DriverError as `read_entries`, and for more."""
    entries = read_entries(path, magic)
    if len(entries) != 1:
        raise damaged(path, f"it has {len(entries)} entries, not one")
    return entries[0]


def head_entry(path: Path, magic: int) -> Entry:
    """The first entry of an image that has contents behind it (queues, deleted files)."""
    return Entry(path, read_first(path, magic))


def damaged(path: Path, why: str) -> DriverError:
    """What is wrong with an image that has the right magic numbers."""
    return DriverError(
        f"{path.name} is damaged: {why}",
        advice="check the digests of the images, or use another snapshot",
        details=(str(path),),
    )
