"""Taking sockets out of repair mode that a killed CRIU left in it.

CRIU dumps a TCP socket by switching it to repair mode (`TCP_REPAIR`, see tcp(7) of the kernel's
`include/uapi/linux/tcp.h`). If CRIU is killed then, the mode stays: every read and write of the
job fails with EPERM, so the job would die although nothing is wrong with it.
"""

from __future__ import annotations

import ctypes
import os
import socket
import stat
from collections.abc import Iterable, Iterator
from pathlib import Path

from coordinator.core.errors import DriverError

TCP_REPAIR = 19
REPAIR_OFF_WITHOUT_PROBE = -1
SYS_PIDFD_GETFD = 438  # the same on every architecture


def leave_repair_mode(pids: Iterable[int]) -> int:
    """Switch it off for every TCP socket of these processes; return for how many it was on.

    Raises DriverError when a socket refuses. Safe to repeat.
    """
    healed = 0
    for pid in pids:
        for fd in _socket_fds(pid):
            with _copy_of(pid, fd) as copy:
                if copy is not None and _is_tcp(copy) and copy.getsockopt(_TCP, TCP_REPAIR):
                    _switch_off(copy, pid, fd)
                    healed += 1
    return healed


_TCP = socket.IPPROTO_TCP


def _socket_fds(pid: int) -> Iterator[int]:
    try:
        names = [entry.name for entry in Path(f"/proc/{pid}/fd").iterdir()]
    except (FileNotFoundError, ProcessLookupError):
        return
    for name in names:
        try:
            mode = os.stat(f"/proc/{pid}/fd/{name}").st_mode
        except (FileNotFoundError, ProcessLookupError):
            continue
        if stat.S_ISSOCK(mode):
            yield int(name)


class _copy_of:  # noqa: N801 - reads as the words `with copy of`
    """Another process's socket as one of ours, for the time of a `with`."""

    def __init__(self, pid: int, fd: int) -> None:
        self._pid, self._fd = pid, fd
        self._socket: socket.socket | None = None

    def __enter__(self) -> socket.socket | None:
        try:
            pidfd = os.pidfd_open(self._pid)
        except ProcessLookupError:
            return None
        try:
            copy = ctypes.CDLL(None, use_errno=True).syscall(SYS_PIDFD_GETFD, pidfd, self._fd, 0)
        finally:
            os.close(pidfd)
        if copy >= 0:
            self._socket = socket.socket(fileno=copy)
        return self._socket

    def __exit__(self, *_: object) -> None:
        if self._socket is not None:
            self._socket.close()


def _is_tcp(copy: socket.socket) -> bool:
    return (
        copy.family in (socket.AF_INET, socket.AF_INET6)
        and copy.getsockopt(socket.SOL_SOCKET, socket.SO_PROTOCOL) == _TCP
    )


def _switch_off(copy: socket.socket, pid: int, fd: int) -> None:
    try:
        copy.setsockopt(_TCP, TCP_REPAIR, REPAIR_OFF_WITHOUT_PROBE)
    except OSError as error:
        raise DriverError(
            f"socket {fd} of process {pid} stays in repair mode: {error.strerror}",
            advice="the worker cannot go on; restore the job from its last snapshot",
            definite=False,
        ) from error
