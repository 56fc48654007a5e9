"""A program: end registrations of epoll that only somebody with the file under that number can end.

Its argument is a list of (pid, epoll, number, holder, held) as `watches` makes it. It borrows epoll
and file (pidfd_getfd), gives the file the number, and has epoll forget it. Standard library only.
"""

from __future__ import annotations

import ctypes
import fcntl
import json
import os
import resource
import select
import sys

SYS_PIDFD_GETFD = 438  # the same on every architecture, Linux >= 5.6
_libc = ctypes.CDLL(None, use_errno=True)


def main() -> None:
    """End them all; raises OSError for one that cannot be."""
    watches = [tuple(each) for each in json.loads(sys.argv[1])]
    above = max(number for _, _, number, _, _ in watches) + 1
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    for pid, epoll, number, holder, held in watches:
        keeper = select.epoll.fromfd(_borrowed(pid, epoll, above))
        file = _borrowed(holder, held, above)
        os.dup2(file, number)  # 0 to 2 may go: nothing is said unless it fails
        keeper.unregister(number)
        for descriptor in (number, file):
            os.close(descriptor)
        keeper.close()


def _borrowed(pid: int, number: int, above: int) -> int:
    """Another process's descriptor, under a number that is out of the way."""
    process = os.pidfd_open(pid)
    copy = int(_libc.syscall(SYS_PIDFD_GETFD, process, number, 0))
    if copy < 0:
        code = ctypes.get_errno()
        raise OSError(code, f"descriptor {number} of {pid}: {os.strerror(code)}")
    moved = fcntl.fcntl(copy, fcntl.F_DUPFD_CLOEXEC, above)
    os.close(copy)
    os.close(process)
    return moved


if __name__ == "__main__":
    main()
