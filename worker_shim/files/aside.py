"""Putting aside what came after the cut, under names beside the file that last.

`NAME.after-LABEL`, then `.2`, `.3` …: a name is used once, and the same content never twice.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from coordinator.core.errors import DriverError
from worker_shim.files.copying import clone, copy_contents, same_start, sync_parent

NEW = ".allstop-new"
AFTER = ".after-{}"
PLACES_MAX = 1000  # a job that was rolled back so often to one snapshot has other troubles
NAME_BYTES_MAX = 255  # NAME_MAX of linux/limits.h
_FRESH = os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW


def beside(path: Path, suffix: str) -> Path:
    """The file's name with something behind it; a name that gets too long loses its own end."""
    room = NAME_BYTES_MAX - len(os.fsencode(suffix))
    return path.with_name(os.fsdecode(os.fsencode(path.name)[:room]) + suffix)


def new_name(path: Path, by: str) -> Path:
    """Where a file is written before it is put in place; of everybody their own."""
    return beside(path, f"{NEW}{by}")


@contextmanager
def new_beside(path: Path, by: str) -> Iterator[IO[bytes]]:
    """An empty file that is not in place yet, synced at the end, gone after an error.

    One that a crash has left is begun anew.
    """
    new = new_name(path, by)
    fd = os.open(new, _FRESH, 0o600)
    try:
        with os.fdopen(fd, "r+b") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
    except OSError:
        new.unlink(missing_ok=True)
        raise


def keep_tail(path: Path, size_bytes: int, label: str, by: str) -> Path:
    """Keep what comes after the first `size_bytes`; the file itself stays as it is."""
    with open(path, "rb") as source, new_beside(path, by) as tail:
        now_bytes = os.fstat(source.fileno()).st_size
        copy_contents(
            source.fileno(), tail.fileno(), now_bytes, start=size_bytes, shift=-size_bytes
        )
    return _place(path, label, by)


def keep_whole(path: Path, label: str, by: str) -> Path:
    """Keep all that is there under another name; the file itself stays until it is replaced."""
    for place in kept_before(path, label):
        if equal(path, place):
            return place
    with open(path, "rb") as source, new_beside(path, by) as whole:
        if not clone(source.fileno(), whole.fileno()):
            copy_contents(source.fileno(), whole.fileno(), os.fstat(source.fileno()).st_size)
    return _place(path, label, by)


def kept_before(path: Path, label: str) -> Iterator[Path]:
    """Everything that was ever kept aside of this file for one snapshot."""
    for place in _places(path, label):
        if not os.path.lexists(place):
            return
        yield place


def _places(path: Path, label: str) -> Iterator[Path]:
    for number in range(1, PLACES_MAX):
        yield beside(path, AFTER.format(label) + (f".{number}" if number > 1 else ""))


def _place(path: Path, label: str, by: str) -> Path:
    """Give what was written aside its lasting name: one that is free, or has the same content."""
    new = new_name(path, by)
    for place in _places(path, label):
        if not os.path.lexists(place):
            os.rename(new, place)
            sync_parent(place)
            return place
        if equal(new, place):
            new.unlink()
            return place
    new.unlink()
    raise DriverError(
        f"{path} has been kept aside {PLACES_MAX - 1} times already for {label}",
        advice=f"remove old {path.name}.after-* files",
    )


def equal(one: Path, other: Path) -> bool:
    """Whether two regular files have the same content."""
    if not other.is_file() or one.stat().st_size != other.stat().st_size:
        return False
    with open(one, "rb") as left, open(other, "rb") as right:
        return same_start(left.fileno(), right.fileno(), one.stat().st_size)
