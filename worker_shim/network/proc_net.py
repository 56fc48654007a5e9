"""The TCP sockets of a tree: descriptors in /proc/PID/fd, matched with /proc/net/tcp by inode."""

from __future__ import annotations

import ipaddress
import os
import struct
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from coordinator.core.model import Endpoint
from worker_shim.network.port import Sockets

LISTEN, CLOSE = 0x0A, 0x07  # include/net/tcp_states.h
SOCKET_LINK = "socket:["
PROC = Path("/proc")


@dataclass(frozen=True)
class TcpRow:
    """One line of /proc/net/tcp or tcp6."""

    state: int
    inode: int
    endpoint: Endpoint


def sockets_of(pids: Iterable[int]) -> Sockets:
    """Every TCP socket that one of these processes holds; what it has closed is not its any more.

    Sockets on their way (SYN sent, being closed) count as established: they have two ends.
    """
    inodes = set(socket_inodes(pids))
    established, listening = set[Endpoint](), set[tuple[str, int]]()
    for row in tcp_rows():
        if row.inode not in inodes or row.state == CLOSE:
            continue
        if row.state == LISTEN:
            listening.add((row.endpoint.local_address, row.endpoint.local_port))
        else:
            established.add(row.endpoint)
    return Sockets(tuple(sorted(established, key=_order)), tuple(sorted(listening)))


def socket_inodes(pids: Iterable[int]) -> Iterator[int]:
    """Inode numbers of every socket these processes have open; a process that ended has none."""
    for pid in pids:
        try:
            with os.scandir(PROC / str(pid) / "fd") as entries:
                descriptors = [entry.path for entry in entries]
        except (FileNotFoundError, ProcessLookupError):
            continue
        for descriptor in descriptors:
            try:
                link = os.readlink(descriptor)
            except (FileNotFoundError, ProcessLookupError):
                continue
            if link.startswith(SOCKET_LINK):
                yield int(link[len(SOCKET_LINK) : -1])


def tcp_rows() -> Iterator[TcpRow]:
    """All TCP sockets of this network namespace, both families."""
    for table in ("tcp", "tcp6"):
        try:
            lines = (PROC / "thread-self" / "net" / table).read_text().splitlines()[1:]
        except FileNotFoundError:  # a kernel without IPv6
            continue
        for line in lines:
            fields = line.split()
            local, remote = _address_and_port(fields[1]), _address_and_port(fields[2])
            yield TcpRow(int(fields[3], 16), int(fields[9]), Endpoint(*local, *remote))


def _address_and_port(text: str) -> tuple[str, int]:
    """`0100007F:1F90` is 127.0.0.1:8080: the words of the address in native byte order."""
    digits, _, port = text.partition(":")
    words = [int(digits[at : at + 8], 16) for at in range(0, len(digits), 8)]
    address = ipaddress.ip_address(struct.pack(f"={len(words)}I", *words))
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return str(mapped or address), int(port, 16)


def _order(endpoint: Endpoint) -> tuple[str, int, str, int]:
    return (
        endpoint.local_address,
        endpoint.local_port,
        endpoint.remote_address,
        endpoint.remote_port,
    )
