"""Copying one file: shared blocks where the file system can, else only what is not a hole."""

from __future__ import annotations

import errno
import fcntl
import os
from pathlib import Path

FICLONE = 0x40049409  # linux/fs.h
CHUNK_BYTES = 1 << 20
NOT_POSSIBLE = (
    errno.EXDEV,
    errno.EOPNOTSUPP,
    errno.EINVAL,
    errno.ENOSYS,
    errno.ENOTTY,
    errno.EPERM,
)


def clone(source: int, target: int) -> bool:
    """Make the target share all blocks of the source (FICLONE); False where that cannot be."""
    try:
        fcntl.ioctl(target, FICLONE, source)
    except OSError as error:
        if error.errno in NOT_POSSIBLE:
            return False
        raise
    return True


def copy_contents(
    source: int, target: int, size_bytes: int, *, start: int = 0, shift: int = 0
) -> None:
    """Copy the first `size_bytes` but what is before `start`; holes stay holes. Raises OSError.

    What is at N in the source comes to N + shift; the target is as long as that makes it.
    """
    os.ftruncate(target, size_bytes + shift)
    at = start
    while at < size_bytes:
        try:
            data = os.lseek(source, at, os.SEEK_DATA)
        except OSError as error:
            if error.errno == errno.ENXIO:  # only a hole is left
                return
            raise
        end = min(os.lseek(source, data, os.SEEK_HOLE), size_bytes)
        _copy_range(source, target, data, end, shift)
        at = end


def _copy_range(source: int, target: int, start: int, end: int, shift: int) -> None:
    at, in_kernel = start, True
    while at < end:
        copied = 0
        if in_kernel:
            try:
                copied = os.copy_file_range(source, target, end - at, at, at + shift)
            except OSError as error:
                if error.errno not in NOT_POSSIBLE:
                    raise
                in_kernel = False
        if not copied:  # another file system, or one that copies nothing this way (tmpfs, proc)
            in_kernel = False
            chunk = os.pread(source, min(CHUNK_BYTES, end - at), at)
            if not chunk:
                return
            copied = os.pwrite(target, chunk, at + shift)
        at += copied


def same_start(one: int, other: int, size_bytes: int, *, start: int = 0) -> bool:
    """Whether two files agree in their first `size_bytes`; of the first one from `start` on."""
    at = 0
    while at < size_bytes:
        want = min(CHUNK_BYTES, size_bytes - at)
        left, right = os.pread(one, want, start + at), os.pread(other, want, at)
        if left != right or not left:
            return False
        at += len(left)
    return True


def sync_parent(path: Path) -> None:
    """Make a rename in the file's directory survive a crash of the machine."""
    fd = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
