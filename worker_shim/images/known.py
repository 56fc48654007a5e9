"""Files of the image store whose digest this shim knows without reading them again.

A survivor's restore reads what the same shim wrote minutes before; hashing that again was a third
of the whole restore. A file is known by device, inode, size, mtime and ctime, taken when it was
hashed. That is as good as reading it, because of what the kernel does:

* every change of the content (write, truncate, a shared mapping, O_DIRECT) sets mtime and ctime to
  the present, and no system call sets a ctime to a time of one's choice; a file put in its place
  has another inode;
* the clock of these times ticks every few milliseconds, so a change within the tick of the last
  write would leave both as they are: only files whose ctime lies further back are remembered;
* it is asked of an opened file: a network file system asks its server at open, and where that
  gives other times than it gave the writer, the file is simply hashed again.

Not seen, where reading would perhaps see it: a disk that loses bits. So it is believed for an hour,
by the shim that hashed the file, and never across a restart.
"""

from __future__ import annotations

import os
import threading
import time
from collections import OrderedDict
from dataclasses import dataclass
from pathlib import Path

TICK_S = 0.02  # of the slowest kernel there is: 100 Hz, and once more
BELIEVED_S = 3600.0
KEPT_MAX = 4096

Mark = tuple[int, int, int, int, int]


@dataclass(frozen=True)
class _Known:
    digest: str
    since: float


class KnownFiles:
    """Digests by mark; safe to use from several threads."""

    def __init__(self) -> None:
        """Nothing is known at first."""
        self._known: OrderedDict[Mark, _Known] = OrderedDict()
        self._lock = threading.Lock()

    def remember(self, path: Path, digest: str) -> None:
        """Take a file of which every byte was just hashed; nothing, if it changed a moment ago."""
        mark = mark_of(path)
        if time.time_ns() - mark[-1] < TICK_S * 1e9:
            return
        with self._lock:
            self._known[mark] = _Known(digest, time.monotonic())
            while len(self._known) > KEPT_MAX:
                self._known.popitem(last=False)

    def digest(self, path: Path) -> str:
        """The digest of the file as it is now; empty when that is not known. Raises OSError."""
        mark = mark_of(path)
        with self._lock:
            known = self._known.get(mark)
        if known is None or time.monotonic() - known.since > BELIEVED_S:
            return ""
        return known.digest


def mark_of(path: Path) -> Mark:
    """What tells this content of this file from any other; raises OSError."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        found = os.fstat(descriptor)
    finally:
        os.close(descriptor)
    return (found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns)
