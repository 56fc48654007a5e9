"""Sockets in the images, of every family, as `ss` would show them.

For the TCP sockets that a restore locks and moves see `addresses`. Field numbers are those of
CRIU's `images/sk-inet.proto`, `sk-unix.proto`, `sk-netlink.proto`, `sk-packet.proto` and
`tcp-stream.proto`.
"""

from __future__ import annotations

import socket
from dataclasses import dataclass
from pathlib import Path

from worker_shim.criu.addresses import (
    INET_DST_ADDR,
    INET_DST_PORT,
    INET_PROTO,
    INET_SRC_ADDR,
    INET_SRC_PORT,
    INET_STATE,
    address_of,
)
from worker_shim.criu.entries import Entry, damaged, head_entry
from worker_shim.criu.image_file import TCP_STREAM_MAGIC

INET_INODE, INET_FAMILY = 2, 3
UNIX_INODE, UNIX_TYPE, UNIX_STATE, UNIX_PEER, UNIX_NAME = 2, 3, 4, 8, 11
STREAM_RECEIVED, STREAM_UNSENT = 1, 3

PROTOCOLS = {1: "icmp", 6: "tcp", 17: "udp", 58: "icmp6", 136: "udplite", 255: "raw", 262: "mptcp"}
UNIX_TYPES = {1: "unix stream", 2: "unix datagram", 5: "unix seqpacket"}
ESTABLISHED, LISTENING, CLOSED = "established", "listening", "closed"
STATES = {  # include/net/tcp_states.h
    1: ESTABLISHED, 2: "syn-sent", 3: "syn-received", 4: "fin-wait-1", 5: "fin-wait-2",
    6: "time-wait", 7: CLOSED, 8: "close-wait", 9: "last-ack", 10: LISTENING, 11: "closing",
}  # fmt: skip
TCP = 6
WORD_MAX = 0xFFFFFFFF
WORDS_OF_FAMILY = {int(socket.AF_INET): 1, int(socket.AF_INET6): 4}


@dataclass(frozen=True)
class Socket:
    """One socket."""

    protocol: str  # tcp, udp, unix stream, netlink …
    state: str  # established, listening, closed …; empty where that says nothing
    local: str  # 10.0.0.1:80, [::1]:80, /a/path, @abstract; empty: it has no name
    remote: str  # the same; of a unix socket empty, its peer is told by inode
    inode: int
    peer: int = 0  # inode of a unix socket's other end
    received_bytes: int = 0  # TCP: arrived and not read; it is in the images
    unsent_bytes: int = 0  # TCP: written and not acknowledged


def inet_socket(images: Path, entry: Entry) -> Socket:
    """An IPv4 or IPv6 socket from its entry in files.img."""
    protocol, state = entry.number(INET_PROTO), entry.number(INET_STATE)
    family, inode = entry.number(INET_FAMILY), entry.number(INET_INODE)
    connected = entry.number(INET_DST_PORT) != 0
    received = unsent = 0
    stream = images / f"tcp-stream-{inode:x}.img"
    if protocol == TCP and stream.exists():
        queues = head_entry(stream, TCP_STREAM_MAGIC)
        received, unsent = queues.number(STREAM_RECEIVED), queues.number(STREAM_UNSENT)
    remote = _end(entry, family, INET_DST_ADDR, INET_DST_PORT) if connected else ""
    return Socket(
        protocol=PROTOCOLS.get(protocol, f"protocol {protocol}"),
        state=STATES.get(state, f"state {state}") if protocol == TCP else "",
        local=_end(entry, family, INET_SRC_ADDR, INET_SRC_PORT),
        remote=remote,
        inode=inode,
        received_bytes=received,
        unsent_bytes=unsent,
    )


def unix_socket(entry: Entry) -> Socket:
    """A unix socket from its entry in files.img."""
    kind, state = entry.number(UNIX_TYPE), entry.number(UNIX_STATE)
    name = entry.raw(UNIX_NAME)
    abstract = name.startswith(b"\0")
    text = name.lstrip(b"\0").rstrip(b"\0").decode(errors="backslashreplace")
    return Socket(
        protocol=UNIX_TYPES.get(kind, f"unix type {kind}"),
        state=STATES.get(state, f"state {state}"),
        local=f"@{text}" if abstract else text,
        remote="",
        inode=entry.number(UNIX_INODE),
        peer=entry.number(UNIX_PEER),
    )


def other_socket(protocol: str, entry: Entry) -> Socket:
    """A netlink or packet socket, of which only the number is told."""
    return Socket(protocol, "", "", "", entry.number(INET_INODE))


def _end(entry: Entry, family: int, address: int, port: int) -> str:
    words = entry.numbers(address)
    if len(words) != WORDS_OF_FAMILY.get(family) or max(words) > WORD_MAX:
        raise damaged(entry.path, f"a socket of family {family} has the address {list(words)}")
    shown = address_of(words)
    text = f"[{shown}]" if shown.version == 6 else str(shown)
    return f"{text}:{entry.number(port)}"
