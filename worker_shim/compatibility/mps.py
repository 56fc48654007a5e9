"""Whether a daemon of MPS listens where CUDA would look for one.

What a killed daemon has left there is no daemon, and one in another PID namespace is seen by no
list of processes: so the place itself is asked.
"""

from __future__ import annotations

import contextlib
import os
import socket
import stat
from pathlib import Path

DIRECTORY = "tmp/nvidia-mps"  # where CUDA looks when CUDA_MPS_PIPE_DIRECTORY says nothing
CONTROL = "control"


def listens(directory: Path) -> bool:
    """Whether somebody reads this directory's control pipe, or accepts at its control socket.

    Nothing is written there. The path may be a worker's word: nothing else is opened.
    """
    try:
        place = os.open(directory / CONTROL, os.O_PATH | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        kind, path = os.fstat(place).st_mode, f"/proc/self/fd/{place}"
        if stat.S_ISFIFO(kind):
            os.close(os.open(path, os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC))
            return True
        return stat.S_ISSOCK(kind) and _accepts(path)
    except OSError:  # ENXIO, ECONNREFUSED: nobody is there
        return False
    finally:
        os.close(place)


def _accepts(path: str) -> bool:
    with socket.socket(socket.AF_UNIX) as asking:
        asking.setblocking(False)
        with contextlib.suppress(BlockingIOError):  # there is a queue, and it is full
            asking.connect(path)
    return True
