"""Putting one file back to what it was at the cut.

Nothing is lost: what the job wrote after the cut is kept beside the file before the file changes.
Every change is one step (rename, or cutting the end off), so a crash leaves the file as it was or
as it shall be, and doing it again is harmless.
"""

from __future__ import annotations

import os
import stat
from contextlib import closing
from pathlib import Path
from typing import IO

from coordinator.core.errors import DriverError
from worker_shim.files.copying import clone, copy_contents, same_start, sync_parent
from worker_shim.files.port import OpenFile

NEW = ".allstop-new"
KEEP = "{}.after-{}"
PLACES_MAX = 1000  # a job that was rolled back so often to one snapshot has other troubles
VOLATILE = ("page", "shm")  # memory, not documents: nothing of it is worth keeping


def roll_back_file(file: OpenFile, copies: Path, label: str) -> Path | None:
    """Make the file what it was; return where what came after was kept, None if nothing was.

    Raises DriverError, with the file untouched.
    """
    path = Path(file.path)
    try:
        return _roll_back(file, path, copies / file.copy if file.copy else None, label)
    except OSError as error:
        raise DriverError(
            f"cannot put {file.path} back to what it was at the checkpoint: {error.strerror}",
            advice="make room, or put the file there by hand",
            details=(str(error.filename or path),),
        ) from error


def _roll_back(file: OpenFile, path: Path, copy: Path | None, label: str) -> Path | None:
    try:
        status = path.lstat()
    except FileNotFoundError:
        _put(file, path, _need(file, copy, "is missing"))
        return None
    if not stat.S_ISREG(status.st_mode):
        raise DriverError(
            f"{file.path} was a regular file at the checkpoint and is none now",
            advice="move what is there away",
        )
    if _start_is_same(file, path, status.st_size, copy):
        kept = None
        if status.st_size > file.size_bytes:
            kept = _keep_tail(file, path, label)
            os.truncate(path, file.size_bytes)
        os.chmod(path, file.mode)
        return kept
    wanted = _need(file, copy, f"is {status.st_size} bytes long, not {file.size_bytes}")
    kept = None if file.role in VOLATILE else _keep_whole(path, label)
    _put(file, path, wanted)
    return kept


def _need(file: OpenFile, copy: Path | None, what: str) -> Path:
    if copy is None:
        raise DriverError(
            f"{file.path} {what}, and it was too big to be copied at the checkpoint",
            advice="put the file there by hand, or raise the copy limit for the next checkpoint",
        )
    return copy


def _start_is_same(file: OpenFile, path: Path, size_bytes: int, copy: Path | None) -> bool:
    """Whether cutting the end off is enough; without a copy only the size can tell."""
    if size_bytes < file.size_bytes:
        return False
    if copy is None:
        return True
    with open(path, "rb") as now, open(copy, "rb") as then:
        return same_start(now.fileno(), then.fileno(), file.size_bytes)


def _keep_tail(file: OpenFile, path: Path, label: str) -> Path | None:
    if file.role in VOLATILE:
        return None
    with open(path, "rb") as source, closing(_new_beside(path)) as tail:
        source.seek(file.size_bytes)
        while chunk := source.read(1 << 20):
            tail.write(chunk)
        _sync(tail)
    return _place(path, label)


def _keep_whole(path: Path, label: str) -> Path:
    """Keep all that is there under another name; the file itself stays until it is replaced."""
    with open(path, "rb") as source, closing(_new_beside(path)) as whole:
        if not clone(source.fileno(), whole.fileno()):
            copy_contents(source.fileno(), whole.fileno(), os.fstat(source.fileno()).st_size)
        _sync(whole)
    return _place(path, label)


def _put(file: OpenFile, path: Path, copy: Path) -> None:
    """Put the copy in the file's place at once."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(copy, "rb") as source, closing(_new_beside(path)) as target:
        if not clone(source.fileno(), target.fileno()):
            copy_contents(source.fileno(), target.fileno(), file.size_bytes)
        if file.uid >= 0:
            os.fchown(target.fileno(), file.uid, file.gid)
        os.fchmod(target.fileno(), file.mode)
        _sync(target)
    os.replace(path.with_name(path.name + NEW), path)
    sync_parent(path)


def _new_beside(path: Path) -> IO[bytes]:
    """An empty file that is not in place yet; one of a crash is begun anew."""
    fd = os.open(path.with_name(path.name + NEW), _FRESH, 0o600)
    return os.fdopen(fd, "r+b")


_FRESH = os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW


def _sync(file: IO[bytes]) -> None:
    file.flush()
    os.fsync(file.fileno())


def _place(path: Path, label: str) -> Path:
    """Give what was written aside its lasting name: one that is free, or has the same content."""
    new = path.with_name(path.name + NEW)
    for number in range(1, PLACES_MAX):
        name = KEEP.format(path.name, label) + (f".{number}" if number > 1 else "")
        place = path.with_name(name)
        if not place.exists():
            os.rename(new, place)
            sync_parent(place)
            return place
        if _equal(new, place):
            new.unlink()
            return place
    raise DriverError(
        f"{path} has been kept aside {PLACES_MAX - 1} times already for {label}",
        advice=f"remove old {path.name}.after-* files",
    )


def _equal(one: Path, other: Path) -> bool:
    if one.stat().st_size != other.stat().st_size:
        return False
    with open(one, "rb") as left, open(other, "rb") as right:
        return same_start(left.fileno(), right.fileno(), one.stat().st_size)
