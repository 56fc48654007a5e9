"""What a rank is told, a line at a time, and answers each with a line.

fill NAME MIB     allocate device memory and fill it
sum NAME          digest of what is there now
step NAME COUNT   change it so many times, each by what was there; the digest after that
copy NAME         milliseconds of a copy of all of it from the device, and of one back to it
work SECONDS      begin work on the device that lasts so long, and do not wait for it
nvml              initialise NVML in this process, and leave it so
fork              fork a child that keeps what is open here, until this process ends; its pid
managed MIB       have managed memory, and use it
pid               of this process
quit              end; as the end of the input

Standard input may be a file that grows: a process whose files are files can be dumped.
"""

from __future__ import annotations

import os
import stat
import sys
import time
from collections.abc import Iterator
from typing import Any

REST_S = 0.005


class Told:
    """Answers for a rank that has a method for each verb of its own; "done" where it has none."""

    def __init__(self, subject: Any) -> None:
        self._subject = subject

    def serve(self) -> None:
        """Until the input ends."""
        print("ready", flush=True)
        for line in _lines():
            verb, *words = line.split()
            if verb == "quit":
                return
            try:
                told = getattr(self, verb, None) or getattr(self._subject, verb)
                answer = told(*words)
            except Exception as error:
                answer = f"failed {type(error).__name__}: {error}".replace("\n", " ")
            print("done" if answer is None else answer, flush=True)

    def pid(self) -> int:
        """Of this process."""
        return os.getpid()

    def nvml(self) -> None:
        """As PyTorch and others do at times."""
        import pynvml

        pynvml.nvmlInit()
        pynvml.nvmlDeviceGetUUID(pynvml.nvmlDeviceGetHandleByIndex(0))

    def fork(self) -> int:
        """Its end of a pipe is all that the child reads, so that it ends when its parent does."""
        ours, theirs = os.pipe()
        child = os.fork()
        if child == 0:
            os.close(theirs)
            os.read(ours, 1)
            os._exit(0)
        os.close(ours)
        return child


def _lines() -> Iterator[str]:
    grows = stat.S_ISREG(os.fstat(sys.stdin.fileno()).st_mode)
    line = ""
    while True:
        line += sys.stdin.readline()
        if line.endswith("\n"):
            yield line
            line = ""
        elif grows:
            time.sleep(REST_S)
        else:
            return
