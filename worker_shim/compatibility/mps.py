"""Whether a daemon of MPS listens where CUDA would look for one.

What a killed daemon has left there is no daemon, and one in another PID namespace is seen by no
list of processes: so the place itself is asked.
"""

from __future__ import annotations

import os
import socket
import stat
from pathlib import Path

DIRECTORY = "tmp/nvidia-mps"  # where CUDA looks when CUDA_MPS_PIPE_DIRECTORY says nothing
CONTROL = "control"
ANSWER_S = 0.2  # a listener's kernel answers, not the daemon


def listens(directory: Path) -> bool:
    """Whether somebody reads this directory's control pipe, or accepts at its control socket.

    Nothing is written there.
    """
    path = directory / CONTROL
    try:
        kind = path.stat().st_mode
        if stat.S_ISFIFO(kind):
            os.close(os.open(path, os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC))
            return True
        return stat.S_ISSOCK(kind) and _accepts(path)
    except OSError:  # ENXIO, ECONNREFUSED: nobody is there
        return False


def _accepts(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX) as asking:
        asking.settimeout(ANSWER_S)
        fd = os.open(path.parent, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            asking.connect(f"/proc/self/fd/{fd}/{path.name}")  # a socket's path is short
        except BlockingIOError:
            return True  # there is a queue, and it is full
        finally:
            os.close(fd)
    return True
