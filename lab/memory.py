"""A directory in memory that this process and what it starts can see, and nobody else.

It is mounted in a mount namespace of the process's own, so nothing is left when it ends, however.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
from collections.abc import Iterator
from pathlib import Path

from lab.errors import LabUnavailable

CLONE_NEWNS, CLONE_FS = 0x00020000, 0x00000200
MS_REC, MS_PRIVATE = 0x4000, 1 << 18
MNT_DETACH = 2


def free_memory_bytes() -> int:
    """What this machine could still give, by its own estimate (MemAvailable)."""
    return _meminfo("MemAvailable:")


def total_memory_bytes() -> int:
    """What this machine has."""
    return _meminfo("MemTotal:")


def _meminfo(field: str) -> int:
    for line in Path("/proc/meminfo").read_text().splitlines():
        if line.startswith(field):
            return int(line.split()[1]) * 1024
    return 0


@contextlib.contextmanager
def in_memory(directory: Path, size_bytes: int) -> Iterator[None]:
    """Mount a tmpfs on the existing directory, in a mount namespace of this thread's own.

    Seen by what this thread starts, processes and threads; afterwards the thread is back where it
    was. Raises LabUnavailable when the kernel or the user's rights do not allow it.
    """
    before = os.open("/proc/thread-self/ns/mnt", os.O_RDONLY | os.O_CLOEXEC)
    try:
        _call("unshare", CLONE_NEWNS)
        try:
            _call("mount", b"none", b"/", None, MS_REC | MS_PRIVATE, None)
            place = os.fsencode(directory)
            options = f"size={size_bytes},mode=0700".encode()
            _call("mount", b"allstop", place, b"tmpfs", 0, options)
            try:
                yield
            finally:
                _call("umount2", place, MNT_DETACH)
        finally:
            here = os.getcwd()
            _call("unshare", CLONE_FS)  # from threads made meanwhile: they would forbid it
            _call("setns", before, CLONE_NEWNS)
            os.chdir(here)  # setns goes to the root
    finally:
        os.close(before)


def _call(name: str, *arguments: object) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if getattr(libc, name)(*arguments) != 0:
        number = ctypes.get_errno()
        raise LabUnavailable(f"{name}: {os.strerror(number)}")
