"""Copying a file while hashing it, so that every byte is read once."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from pathlib import Path

from blake3 import blake3

from worker_shim.images.port import StoredFile

CHUNK_BYTES = 4 << 20
_ZEROS = bytes(CHUNK_BYTES)


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
    target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    hasher, size = blake3(), 0
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
    with (
        open(source, "rb", buffering=0) as reader,
        open(os.open(target, flags, 0o600), "wb", buffering=0) as writer,
    ):
        while chunk := reader.read(CHUNK_BYTES):
            if stop.is_set():
                raise CopyStopped
            hasher.update(chunk)
            size += len(chunk)
            if chunk == _ZEROS:
                writer.seek(len(chunk), os.SEEK_CUR)
            else:
                _write_all(writer.fileno(), chunk)
            progress(len(chunk))
        os.ftruncate(writer.fileno(), size)
        if sync:
            os.fsync(writer.fileno())
    return StoredFile(name, size, str(hasher.hexdigest()))


def _write_all(descriptor: int, chunk: bytes) -> None:
    view = memoryview(chunk)
    while view:
        view = view[os.write(descriptor, view) :]


def sync_directory(directory: Path) -> None:
    """Make the names in a directory survive a loss of power."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
