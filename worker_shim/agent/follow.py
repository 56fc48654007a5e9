"""The workers' output on the shim's own stdout, as it grows in their log files."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

POLL_S = 0.1
CHUNK_BYTES = 1 << 16
CHUNKS_MAX = 256  # in one go; then others have their turn
LINE_ENDS = (b"\n", b"\r")  # progress bars end theirs by the second


class Follower:
    """Copies what is appended to a file to a descriptor.

    A file that was cut back (a restore rolls logs back) is followed from its new end, one that was
    replaced from the place where the old one stood.
    """

    def __init__(
        self,
        path: Path,
        out: int,
        *,
        poll_s: float = POLL_S,
        from_end: bool = False,
        lines: bool = False,
    ) -> None:
        """`out` is a descriptor, written without buffering; `from_end` leaves out what is there.

        With `lines` a line that is not at its end waits, so that those of others do not cut it.
        """
        self._lines = lines
        self._path = path
        self._out = out
        self._poll_s = poll_s
        self._offset = path.stat().st_size if from_end and path.exists() else 0

    async def run(self) -> None:
        """Follow until cancelled."""
        while True:
            self.catch_up()
            await asyncio.sleep(self._poll_s)

    def catch_up(self, *, last: bool = False) -> None:
        """Copy what is new now; a missing file has nothing new. The `last` time nothing waits."""
        try:
            descriptor = os.open(self._path, os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            return
        try:
            self._offset = min(self._offset, os.fstat(descriptor).st_size)
            for _ in range(CHUNKS_MAX):
                chunk = os.pread(descriptor, CHUNK_BYTES, self._offset)
                if self._lines and not last and len(chunk) < CHUNK_BYTES:
                    chunk = chunk[: 1 + max(map(chunk.rfind, LINE_ENDS))]
                if not chunk:
                    return
                self._offset += len(chunk)
                self._write(chunk)
        finally:
            os.close(descriptor)

    def _write(self, chunk: bytes) -> None:
        view = memoryview(chunk)
        try:
            while view:
                view = view[os.write(self._out, view) :]
        except OSError:
            return  # nobody reads any more; the log file still has it all
