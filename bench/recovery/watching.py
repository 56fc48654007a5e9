"""Steps as the job prints them, stamped when the line is seen: the same way for every contender."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

STEP = re.compile(rb"\bstep (\d+) loss ")
SAVED = re.compile(rb"\bsaved at step (\d+)\b")
CHUNK_BYTES = 1 << 20
REST_S = 0.1


@dataclass(frozen=True)
class Seen:
    """A line of the job's: it has done a step, or says that it saved itself after one."""

    at: float  # time.monotonic()
    step: int
    saved: bool = False


class Watch:
    """Follows log files as they grow, also those that appear later or are cut back."""

    def __init__(self, files: Callable[[], Iterable[Path]], *, restored: bool = False) -> None:
        """`files` is asked anew at each `poll`.

        With `restored`, a file that appears once a step was seen begins with what a restore has
        put back, and is new from where it rests for `REST_S`: the job goes on later than that.
        """
        self._files, self._restored = files, restored
        self._read: dict[Path, tuple[int, bytes]] = {}  # offset, and a line that is not whole
        self._resting: dict[Path, tuple[int, float]] = {}  # size, and since when
        self._began = False

    def poll(self) -> list[Seen]:
        """What has come since the last time."""
        found = []
        for path in self._files():
            for line in self._lines(path):
                if match := STEP.search(line):
                    found.append(Seen(time.monotonic(), int(match[1])))
                elif match := SAVED.search(line):
                    found.append(Seen(time.monotonic(), int(match[1]), saved=True))
        self._began = self._began or bool(found)
        return found

    def _lines(self, path: Path) -> list[bytes]:
        try:
            with path.open("rb") as file:
                size = os.fstat(file.fileno()).st_size
                if path not in self._read and not self._begins(path, size):
                    return []
                offset, rest = self._read[path]
                if size < offset:
                    offset, rest = size, b""
                file.seek(offset)
                data = file.read(CHUNK_BYTES)
        except OSError:  # its host is gone
            return []
        *lines, rest = (rest + data).split(b"\n")
        self._read[path] = (offset + len(data), rest)
        return lines

    def _begins(self, path: Path, size: int) -> bool:
        """Whether it is known from where on the file is new."""
        if not (self._restored and self._began):
            self._read[path] = (0, b"")
            return True
        now = time.monotonic()
        before, since = self._resting.get(path, (-1, now))
        if size != before:
            self._resting[path] = (size, now)
        elif now - since >= REST_S:
            self._read[path] = (size, b"")
        return path in self._read
