"""Removing an nftables table by a message of our own to the kernel.

The table is gone when the kernel has answered, within a fraction of a millisecond. What takes the
15 ms and more of `nft delete table` is closing the socket, which waits until no packet is inside
the old rules; a job that stands still need not wait for that. Layouts and numbers:
`linux/netfilter/nfnetlink.h`, `linux/netfilter/nf_tables.h`.
"""

from __future__ import annotations

import errno
import os
import socket
import struct

from coordinator.core.errors import DriverError

NETLINK_NETFILTER = 12
NFNL_SUBSYS_NFTABLES, BATCH_BEGIN, BATCH_END = 10, 16, 17
DELETE_TABLE = (NFNL_SUBSYS_NFTABLES << 8) | 2
FAMILY_INET, TABLE_NAME = 1, 1
NLM_F_REQUEST, NLM_F_ACK, NLMSG_ERROR = 0x1, 0x4, 2
HEADER = struct.Struct("=IHHII")  # length, type, flags, sequence, port
GENERIC = struct.Struct("=BBH")  # family, version, resource in network order
ATTRIBUTE = struct.Struct("=HH")
RECEIVE_BYTES = 1 << 16


def remove_table(table: str, *, timeout_s: float) -> socket.socket:
    """Remove the table of family inet; no error when there is none.

    Returns the socket, which the caller closes where waiting does no harm. Raises DriverError.
    """
    kernel = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, NETLINK_NETFILTER)
    try:
        kernel.settimeout(timeout_s)
        kernel.bind((0, 0))
        kernel.send(
            _message(BATCH_BEGIN, 1, 0, NFNL_SUBSYS_NFTABLES)
            + _message(DELETE_TABLE, 2, FAMILY_INET, 0, table.encode() + b"\0")
            + _message(BATCH_END, 3, 0, NFNL_SUBSYS_NFTABLES)
        )
        code = _error_code(kernel.recv(RECEIVE_BYTES))
        if code not in (0, errno.ENOENT):
            raise OSError(code, os.strerror(code))
    except OSError as error:
        kernel.close()
        raise DriverError(
            f"cannot remove the nftables table {table}: {error.strerror or error}",
            advice=f"the shim needs CAP_NET_ADMIN; by hand: nft delete table inet {table}",
            definite=not isinstance(error, TimeoutError),
        ) from error
    return kernel


def _message(kind: int, sequence: int, family: int, resource: int, name: bytes = b"") -> bytes:
    body = GENERIC.pack(family, 0, socket.htons(resource))
    flags = NLM_F_REQUEST
    if name:
        size = ATTRIBUTE.size + len(name)
        body += ATTRIBUTE.pack(size, TABLE_NAME) + name + bytes(-size % 4)
        flags |= NLM_F_ACK
    return HEADER.pack(HEADER.size + len(body), kind, flags, sequence, 0) + body


def _error_code(answer: bytes) -> int:
    """The number of the first error in an answer; 0 for the acknowledgement."""
    at = 0
    while at + HEADER.size <= len(answer):
        size, kind, _, _, _ = HEADER.unpack_from(answer, at)
        if kind == NLMSG_ERROR:
            (code,) = struct.unpack_from("=i", answer, at + HEADER.size)
            if code:
                return -int(code)
        at += max(HEADER.size, (size + 3) & ~3)
    return 0
