"""Putting one file back to what it was at the cut.

Nothing is lost: what the job wrote after the cut is kept beside the file before the file changes.
Every change is one step (rename, or cutting the end off), so a crash leaves the file as it was or
as it shall be, and doing it again is harmless. A file with further names is the exception: it is
written in place, so that these stay names of it, after a whole copy of what it shall be is there,
by which the next one goes on.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path

from coordinator.core.errors import DriverError
from worker_shim.files.aside import (
    equal,
    keep_tail,
    keep_whole,
    new_beside,
    new_name,
)
from worker_shim.files.copying import clone, copy_contents, same_start, sync_parent
from worker_shim.files.keeping import MEMORY_ROLES, Keep
from worker_shim.files.port import OpenFile, Put

HOLE_SLACK_BYTES = 64 << 10  # the greatest block of usual file systems: data begins at a block


def roll_back_file(file: OpenFile, copies: Path, label: str, by: str = "") -> tuple[Put, ...]:
    """Make the file what it was; return what is worth telling of it.

    Raises DriverError, with the file untouched.
    """
    path = Path(file.path)
    try:
        return _roll_back(file, path, copies / file.content if file.content else None, label, by)
    except OSError as error:
        raise DriverError(
            f"cannot put {file.path} back to what it was at the checkpoint: {error.strerror}",
            advice="make room, or put the file there by hand",
            details=(str(error.filename or path),),
        ) from error


def trouble_with(file: OpenFile, copies: Path) -> DriverError | None:
    """Why the file could not be put back, as far as that can be told without changing anything."""
    path = Path(file.path)
    copy = copies / file.content if file.content else None
    try:
        status = path.lstat()
    except FileNotFoundError:
        return _missing(file) if file.keeps is Keep.NONE else None
    except OSError as error:
        return DriverError(f"{file.path} cannot be looked at: {error.strerror}")
    if not stat.S_ISREG(status.st_mode):
        return _no_file(file, status.st_mode)
    if file.keeps is Keep.COPY or _kept_part_is_same(file, path, status.st_size, copy):
        return None
    return _other(file, status.st_size)


def _roll_back(
    file: OpenFile, path: Path, copy: Path | None, label: str, by: str
) -> tuple[Put, ...]:
    try:
        status = path.lstat()
    except FileNotFoundError:
        if copy is None:
            raise _missing(file) from None
        _put(file, path, copy, by)
        return _hole(file)
    if not stat.S_ISREG(status.st_mode):
        raise _no_file(file, status.st_mode)
    if _kept_part_is_same(file, path, status.st_size, copy):
        return _cut_back(file, path, status, label, by)
    if copy is None or file.keeps is not Keep.COPY:
        raise _other(file, status.st_size)
    return _replace(file, path, status, copy, label, by)


def _cut_back(
    file: OpenFile, path: Path, status: os.stat_result, label: str, by: str
) -> tuple[Put, ...]:
    told: tuple[Put, ...] = ()
    if status.st_size > file.size_bytes:
        if file.role not in MEMORY_ROLES:
            kept = keep_tail(path, file.size_bytes, label, by)
            told = (Put(file.path, "cut", str(kept), kept.stat().st_size),)
        os.truncate(path, file.size_bytes)
    if file.uid >= 0 and (status.st_uid, status.st_gid) != (file.uid, file.gid):
        os.chown(path, file.uid, file.gid)
    os.chmod(path, file.mode)
    new_name(path, by).unlink(missing_ok=True)  # of a crash
    return (*told, *(_hole(file) if file.keeps is Keep.TAIL and _has_hole(file, path) else ()))


def _replace(
    file: OpenFile, path: Path, status: os.stat_result, copy: Path, label: str, by: str
) -> tuple[Put, ...]:
    new = new_name(path, by)
    begun = status.st_nlink > 1 and new.is_file() and equal(copy, new)
    told: tuple[Put, ...] = ()
    if file.role not in MEMORY_ROLES and not begun:
        kept = keep_whole(path, label, by)
        told = (Put(file.path, "replaced", str(kept), kept.stat().st_size),)
    if status.st_nlink > 1:
        _put_into(file, path, copy, by)
    else:
        _put(file, path, copy, by)
    return told


def _kept_part_is_same(file: OpenFile, path: Path, size_bytes: int, copy: Path | None) -> bool:
    """Whether cutting the end off is enough; without a copy only the size can tell."""
    if size_bytes < file.size_bytes:
        return False
    if copy is None:
        return True
    with open(path, "rb") as now, open(copy, "rb") as then:
        length = file.size_bytes - file.kept_from
        return same_start(now.fileno(), then.fileno(), length, start=file.kept_from)


def _hole(file: OpenFile) -> tuple[Put, ...]:
    return (Put(file.path, "hole", "", file.kept_from),) if file.kept_from else ()


def _has_hole(file: OpenFile, path: Path) -> bool:
    """Whether a roll back before made it anew: nothing is in it before the tail."""
    with open(path, "rb") as now:
        try:
            first = os.lseek(now.fileno(), 0, os.SEEK_DATA)
        except OSError:
            return True
        if first + HOLE_SLACK_BYTES < file.kept_from:
            return False
        return first > 0 or not any(os.pread(now.fileno(), file.kept_from, 0))


def _put(file: OpenFile, path: Path, copy: Path, by: str) -> None:
    """Put what is kept in the file's place at once."""
    path.parent.mkdir(parents=True, exist_ok=True)
    _write_new(file, path, copy, by)
    os.replace(new_name(path, by), path)
    sync_parent(path)


def _put_into(file: OpenFile, path: Path, copy: Path, by: str) -> None:
    """Write what is kept into the file, which has further names."""
    _write_new(file, path, copy, by)
    with open(path, "r+b") as target:
        os.ftruncate(target.fileno(), 0)  # or what shall be a hole would keep what is there
        _copy_to(file, copy, target.fileno())
        os.fsync(target.fileno())
    new_name(path, by).unlink()


def _write_new(file: OpenFile, path: Path, copy: Path, by: str) -> None:
    with new_beside(path, by) as target:
        _copy_to(file, copy, target.fileno())


def _copy_to(file: OpenFile, copy: Path, target: int) -> None:
    """Contents, owner and permissions; what is not kept is a hole."""
    length = file.size_bytes - file.kept_from
    with open(copy, "rb") as source:
        if file.kept_from or not clone(source.fileno(), target):
            copy_contents(source.fileno(), target, length, shift=file.kept_from)
    os.ftruncate(target, file.size_bytes)
    if file.uid >= 0:
        os.fchown(target, file.uid, file.gid)
    os.fchmod(target, file.mode)


# -- what cannot be put back ---------------------------------------------------------------------


def _missing(file: OpenFile) -> DriverError:
    return DriverError(
        f"{file.path} is missing on this node, and of its {file.size_bytes} bytes none were kept "
        f"at the checkpoint{_because(file)}",
        advice="put the file there as it was (its first bytes will do, if there are at least so "
        "many), or restore on a node that has it; --keep-files says what the next checkpoint keeps",
    )


def _other(file: OpenFile, size_bytes: int) -> DriverError:
    if size_bytes < file.size_bytes:
        found = f"is {size_bytes} bytes long and was {file.size_bytes}"
    else:
        found = f"differs from byte {file.kept_from} on"
    kept, way = "none of its contents were", "put the file there as it was"
    if file.keeps is Keep.TAIL:
        kept = f"only its last {file.size_bytes - file.kept_from} bytes were"
        way += ", or move it away: a restore then makes it anew, with a hole for what was not kept"
    return DriverError(
        f"{file.path} {found} at the checkpoint, and {kept} kept{_because(file)}",
        advice=f"{way}; --keep-files says what the next checkpoint keeps",
    )


def _because(file: OpenFile) -> str:
    return f" ({file.why})" if file.why else ""


def _no_file(file: OpenFile, mode: int) -> DriverError:
    there = "a directory" if stat.S_ISDIR(mode) else "a symbolic link" if stat.S_ISLNK(mode) else ""
    return DriverError(
        f"{file.path} was a regular file at the checkpoint and is {there or 'none'} now",
        advice="move what is there away",
    )
