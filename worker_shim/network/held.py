"""The TCP sockets of other processes, by borrowing their descriptors (pidfd_getfd).

Asking the sockets themselves costs microseconds each. /proc/net/tcp would have to be searched for
their inodes instead, and the kernel walks its whole hash table to print it: 10 ms on an idle node
(measured, 262,144 buckets, both families), while the job stands still.
"""

from __future__ import annotations

import ctypes
import errno
import ipaddress
import os
import socket
from collections.abc import Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass

from coordinator.core.errors import DriverError
from coordinator.core.model import Endpoint
from worker_shim.network.port import Sockets

SYS_PIDFD_GETFD = 438  # the same on every architecture, Linux >= 5.6
SOCKET_LINK = "socket:["
CLOSE, LISTEN = 7, 10  # include/net/tcp_states.h
GONE = (errno.EBADF, errno.ESRCH)
_libc = ctypes.CDLL(None, use_errno=True)


@dataclass(frozen=True)
class HeldSocket:
    """One TCP socket of a process; `copy` is our own descriptor of it, open until the next one."""

    pid: int
    fd: int
    copy: socket.socket


def sockets_of(pids: Iterable[int]) -> Sockets:
    """Every TCP socket that one of these processes holds; what it has closed is not its any more.

    Sockets on their way (SYN sent, being closed) count as established: they have two ends.
    Raises DriverError when the descriptors may not be borrowed.
    """
    established, listening = set[Endpoint](), set[tuple[str, int]]()
    for held in held_sockets(pids):
        state = held.copy.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 1)[0]
        if state == CLOSE:
            continue
        local = _plain(held.copy.getsockname())
        if state == LISTEN:
            listening.add(local)
            continue
        try:
            established.add(Endpoint(*local, *_plain(held.copy.getpeername())))
        except OSError as error:  # it was closed by its peer between the two questions
            if error.errno != errno.ENOTCONN:
                raise
    return Sockets(tuple(sorted(established, key=_order)), tuple(sorted(listening)))


def held_sockets(pids: Iterable[int]) -> Iterator[HeldSocket]:
    """Each TCP socket once for each socket, however many processes share it."""
    seen: set[str] = set()
    for pid in pids:
        try:
            pidfd = os.pidfd_open(pid)
        except ProcessLookupError:
            continue
        try:
            for fd, link in _descriptors(pid):
                if link.startswith(SOCKET_LINK) and link not in seen:
                    seen.add(link)
                    yield from _borrowed(pidfd, pid, fd)
        finally:
            os.close(pidfd)


def _descriptors(pid: int) -> Iterator[tuple[int, str]]:
    try:
        names = os.listdir(f"/proc/{pid}/fd")
    except (FileNotFoundError, ProcessLookupError):
        return
    for name in names:
        try:
            yield int(name), os.readlink(f"/proc/{pid}/fd/{name}")
        except (FileNotFoundError, ProcessLookupError):
            continue


def _borrowed(pidfd: int, pid: int, fd: int) -> Iterator[HeldSocket]:
    copy = _libc.syscall(SYS_PIDFD_GETFD, pidfd, fd, 0)
    if copy < 0:
        number = ctypes.get_errno()
        if number in GONE:
            return
        raise DriverError(
            f"cannot look at socket {fd} of process {pid}: {os.strerror(number)}",
            advice="the shim needs root with CAP_SYS_PTRACE, and Linux 5.6 or newer",
        )
    with closing(socket.socket(fileno=copy)) as borrowed:
        if borrowed.family in (socket.AF_INET, socket.AF_INET6) and (
            borrowed.proto == socket.IPPROTO_TCP
        ):
            yield HeldSocket(pid, fd, borrowed)


def _plain(name: tuple[str, int, int, int] | tuple[str, int]) -> tuple[str, int]:
    """Address and port; an IPv4-mapped address as IPv4, a scope id cut off."""
    address = ipaddress.ip_address(name[0].partition("%")[0])
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return str(mapped or address), name[1]


def _order(endpoint: Endpoint) -> tuple[str, int, str, int]:
    return (
        endpoint.local_address,
        endpoint.local_port,
        endpoint.remote_address,
        endpoint.remote_port,
    )
