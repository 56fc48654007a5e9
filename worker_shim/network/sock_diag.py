"""Looking up and destroying single TCP sockets through the kernel's sock_diag netlink family.

What `ss -K` does, but exactly: a socket is looked up by its four numbers, and destroyed by the
cookie that the look-up gave, so that a listener on the same port (which the kernel answers with
when there is no such connection) is never hit. Layouts: sock_diag(7), `linux/inet_diag.h`.
"""

from __future__ import annotations

import errno
import ipaddress
import os
import socket
import struct
from collections.abc import Iterator
from dataclasses import dataclass

from coordinator.core.errors import DriverError
from coordinator.core.model import Endpoint

NETLINK_SOCK_DIAG = 4
SOCK_DIAG_BY_FAMILY, SOCK_DESTROY = 20, 21
NLMSG_ERROR, NLMSG_DONE = 2, 3
NLM_F_REQUEST, NLM_F_ACK, NLM_F_DUMP = 0x1, 0x4, 0x300
TIME_WAIT, LISTEN = 6, 10
NO_COOKIE = b"\xff" * 8
ALL_STATES = 0xFFFFFFFF

HEADER = struct.Struct("=IHHII")
REQUEST = struct.Struct("=BBBxI")
ID = struct.Struct("!HH16s16s")  # ports and addresses; interface and cookie follow
ANSWER = struct.Struct("=BBBB")
ANSWER_TAIL = struct.Struct("=IIIII")  # expires, rqueue, wqueue, uid, inode
ID_BYTES = 48
RECEIVE_BYTES = 1 << 16
RECEIVE_TIMEOUT_S = 5.0
BUSY = "the kernel answered sock_diag with {}"


@dataclass(frozen=True)
class FoundSocket:
    """One socket of this network namespace, as the kernel describes it."""

    endpoint: Endpoint
    state: int
    inode: int  # 0: no process holds it
    identity: bytes  # ports, addresses, interface, cookie: the kernel's own name of it
    family: int


class SockDiag:
    """A netlink socket for the time of a `with`; synchronous, every answer awaited boundedly."""

    def __enter__(self) -> SockDiag:
        self._netlink = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, NETLINK_SOCK_DIAG)
        self._netlink.settimeout(RECEIVE_TIMEOUT_S)
        self._sequence = 0
        return self

    def __exit__(self, *_: object) -> None:
        self._netlink.close()

    def find(self, endpoint: Endpoint) -> FoundSocket | None:
        """The socket of exactly this connection, in whatever state; None when there is none."""
        family, identity = _identity(endpoint)
        try:
            answers = list(self._ask(SOCK_DIAG_BY_FAMILY, NLM_F_ACK, family, identity))
        except OSError as error:
            if error.errno == errno.ENOENT:
                return None
            raise _mapped(error, endpoint) from error
        for found in answers:
            if found.endpoint == endpoint and found.state != LISTEN:
                return found
        return None

    def destroy(self, found: FoundSocket) -> bool:
        """Make the kernel drop the socket; False when it was gone already. Raises DriverError."""
        try:
            list(self._ask(SOCK_DESTROY, NLM_F_ACK, found.family, found.identity))
        except OSError as error:
            if error.errno == errno.ENOENT:
                return False
            raise _mapped(error, found.endpoint) from error
        return True

    def everything(self) -> Iterator[FoundSocket]:
        """All TCP sockets of this network namespace."""
        for family in (socket.AF_INET, socket.AF_INET6):
            try:
                yield from self._ask(SOCK_DIAG_BY_FAMILY, NLM_F_DUMP, family, bytes(ID_BYTES))
            except OSError as error:
                if error.errno != errno.ENOENT:  # a kernel without that family
                    raise _mapped(error, None) from error

    def _ask(self, kind: int, flags: int, family: int, identity: bytes) -> Iterator[FoundSocket]:
        """Send one request and give its answers up to the end mark; raises OSError."""
        self._sequence += 1
        body = REQUEST.pack(family, socket.IPPROTO_TCP, 0, ALL_STATES) + identity
        size = HEADER.size + len(body)
        header = HEADER.pack(size, kind, NLM_F_REQUEST | flags, self._sequence, 0)
        self._netlink.send(header + body)
        while True:
            datagram = self._netlink.recv(RECEIVE_BYTES)
            for answer, content in _split(datagram, self._sequence):
                if answer == NLMSG_DONE:
                    return
                if answer == NLMSG_ERROR:
                    (code,) = struct.unpack_from("=i", content)
                    if code:
                        raise OSError(-code, os.strerror(-code))
                    return
                yield _found(content)


def _split(datagram: bytes, sequence: int) -> Iterator[tuple[int, bytes]]:
    """Type and content of each message that answers this request."""
    at = 0
    while at + HEADER.size <= len(datagram):
        size, kind, _, answered, _ = HEADER.unpack_from(datagram, at)
        if size < HEADER.size:
            return
        if answered == sequence:
            yield kind, datagram[at + HEADER.size : at + size]
        at += (size + 3) & ~3


def _found(content: bytes) -> FoundSocket:
    family, state, _, _ = ANSWER.unpack_from(content)
    identity = content[ANSWER.size : ANSWER.size + ID_BYTES]
    local_port, remote_port, local, remote = ID.unpack_from(identity)
    *_, inode = ANSWER_TAIL.unpack_from(content, ANSWER.size + ID_BYTES)
    endpoint = Endpoint(_text(family, local), local_port, _text(family, remote), remote_port)
    return FoundSocket(endpoint, state, inode, identity, family)


def _text(family: int, raw: bytes) -> str:
    if family == socket.AF_INET:
        return str(ipaddress.IPv4Address(raw[:4]))
    address = ipaddress.IPv6Address(raw)
    return str(address.ipv4_mapped or address)


def _identity(endpoint: Endpoint) -> tuple[int, bytes]:
    """The kernel finds IPv4-mapped sockets by their IPv4 addresses too."""
    local = ipaddress.ip_address(endpoint.local_address)
    remote = ipaddress.ip_address(endpoint.remote_address)
    family = socket.AF_INET if local.version == 4 else socket.AF_INET6
    ports_and_addresses = ID.pack(
        endpoint.local_port, endpoint.remote_port, local.packed, remote.packed
    )
    return family, ports_and_addresses + bytes(4) + NO_COOKIE


def _mapped(error: OSError, endpoint: Endpoint | None) -> DriverError:
    what = f"cannot look up TCP sockets: {error.strerror}"
    if endpoint is not None:
        what = f"cannot clear the connection {connection(endpoint)}: {error.strerror or error}"
    advice = "the shim needs CAP_NET_ADMIN in this network namespace"
    if error.errno == errno.EOPNOTSUPP:
        advice = "the kernel needs CONFIG_INET_DIAG_DESTROY; or restore on another node"
    return DriverError(what, advice=advice, definite=False)


def connection(endpoint: Endpoint) -> str:
    """A connection as people write it."""
    return (
        f"{endpoint.local_address}:{endpoint.local_port} → "
        f"{endpoint.remote_address}:{endpoint.remote_port}"
    )
