"""Copying, linking and hashing files, so that every byte is read once."""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Callable
from pathlib import Path

from blake3 import blake3

from worker_shim.images.port import StoredFile

# Small enough to stay in the processor's cache between read and hash, which is what makes it fast;
# files are read, not mapped: a mapping turns an error of the storage into the end of the shim.
CHUNK_BYTES = 1 << 18
_ZEROS = bytes(CHUNK_BYTES)
_NO_LINK = (errno.EXDEV, errno.EPERM, errno.EMLINK, errno.EOPNOTSUPP, errno.EACCES)

Write = Callable[[memoryview, bool], None]  # the bytes, and whether all of them are zero


class CopyStopped(Exception):
    """The copy was told to stop before it was whole."""


def copy_hashed(
    source: Path,
    target: Path,
    name: str,
    *,
    stop: threading.Event,
    progress: Callable[[int], None],
    sync: bool,
) -> StoredFile:
    """Copy one regular file to a new file of mode 0600; holes stay holes.

    `stop` is looked at between chunks; raises CopyStopped and OSError. A crash leaves a short file.
    """
    _begin(target, stop)
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
    with open(os.open(target, flags, 0o600), "wb", buffering=0) as writer:

        def write(chunk: memoryview, zero: bool) -> None:
            if zero:
                writer.seek(len(chunk), os.SEEK_CUR)
            else:
                _write_all(writer.fileno(), chunk)

        stored = _hashed(source, name, write, stop, progress)
        os.ftruncate(writer.fileno(), stored.size_bytes)
        if sync:
            os.fsync(writer.fileno())
    return stored


def link_hashed(
    source: Path,
    target: Path,
    name: str,
    *,
    stop: threading.Event,
    progress: Callable[[int], None],
) -> StoredFile:
    """Give a file a second name and hash what is read through it; nobody may write through it.

    A hard link where both names are on one file system, else a symbolic one. `stop` is looked at
    between chunks; raises CopyStopped and OSError.
    """
    _begin(target, stop)
    try:
        os.link(source, target)
    except OSError as error:
        if error.errno not in _NO_LINK:
            raise
        os.symlink(os.path.abspath(source), target)
    return _hashed(target, name, None, stop, progress)


def link_known(
    source: Path,
    target: Path,
    stored: StoredFile,
    *,
    stop: threading.Event,
    progress: Callable[[int], None],
) -> StoredFile:
    """Give a file whose digest is known a second name; raises CopyStopped and OSError.

    A symbolic one: a hard link would change the ctime that the file is known by.
    """
    _begin(target, stop)
    os.symlink(os.path.abspath(source), target)
    progress(stored.size_bytes)
    return stored


def hash_only(
    source: Path, name: str, stop: threading.Event, progress: Callable[[int], None]
) -> StoredFile:
    """Read a file as it is now; raises CopyStopped and OSError."""
    return _hashed(source, name, None, stop, progress)


def _begin(target: Path, stop: threading.Event) -> None:
    """A copy that was told to stop makes nothing: its directory may be gone already."""
    if stop.is_set():
        raise CopyStopped
    target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)


def _hashed(
    source: Path,
    name: str,
    write: Write | None,
    stop: threading.Event,
    progress: Callable[[int], None],
) -> StoredFile:
    hasher, size = blake3(), 0
    buffer = bytearray(CHUNK_BYTES)
    view = memoryview(buffer)
    with open(source, "rb", buffering=0) as reader:
        while count := reader.readinto(buffer):
            if stop.is_set():
                raise CopyStopped
            chunk = view[:count]
            hasher.update(chunk)
            if write is not None:
                write(chunk, count == len(buffer) and buffer == _ZEROS)
            size += count
            progress(count)
    return StoredFile(name, size, str(hasher.hexdigest()))


def _write_all(descriptor: int, chunk: memoryview) -> None:
    while chunk:
        chunk = chunk[os.write(descriptor, chunk) :]


def sync_directory(directory: Path) -> None:
    """Make the names in a directory survive a loss of power."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
