"""Sockets that CRIU cannot dump, and unix sockets whose other end is outside the tree."""

from __future__ import annotations

import os
import socket
import struct
from collections.abc import Iterator

from coordinator.core.model import Finding, Severity
from worker_shim.process import proc
from worker_shim.process.view import Descriptor, ProcessView, TreeView, descriptor_targets

# What the kernel calls the protocols that are carried (struct proto.name of each family).
_CARRIED = ("TCP", "TCPv6", "UDP", "UDPv6", "UDP-Lite", "UDPLITEv6", "UNIX", "UNIX-STREAM")

# Tried with CRIU 4.2.1: these come back when idle, so they are no reason to refuse.
_CARRIED_WHEN_IDLE = {
    "NETLINK": ("netlink", "a netlink socket, carried only with nothing unread in it"),
    "PACKET": ("packet_socket", "a packet socket, which another node may not have a device for"),
    "RAW": ("raw_socket", "a raw socket, carried only with nothing unread in it"),
    "RAWv6": ("raw_socket", "a raw socket, carried only with nothing unread in it"),
}

_NOT_CARRIED = {
    "AF_VSOCK": ("vsock", "a vsock to the hypervisor", "turn off the guest agent's client"),
    "MPTCP": ("mptcp", "a multipath TCP socket", "turn MPTCP off (Go: GODEBUG=multipathtcp=0)"),
}

# <linux/sock_diag.h>, <linux/unix_diag.h>, <linux/netlink.h>
_SOCK_DIAG_BY_FAMILY = 20
_NETLINK_SOCK_DIAG = 4
_NLM_F_REQUEST_DUMP = 0x301
_NLMSG_ERROR, _NLMSG_DONE = 2, 3
_UDIAG_SHOW_PEER = 4
_UNIX_DIAG_PEER = 2
_CONNECTED_TYPES = (socket.SOCK_STREAM, socket.SOCK_SEQPACKET)
_ANSWER_BYTES = 1 << 18
_ANSWERS_MAX = 10_000


def check(tree: TreeView) -> Iterator[Finding]:
    """Look at every socket of every process."""
    unix: list[tuple[ProcessView, Descriptor]] = []
    for process, descriptor in tree.all_descriptors():
        if not descriptor.inode("socket"):
            continue
        protocol = _protocol(process.process.pid, descriptor)
        if protocol.startswith("UNIX"):
            unix.append((process, descriptor))
        elif protocol and protocol not in _CARRIED:
            yield _uncommon(process, descriptor, protocol)
    if unix:
        yield from _to_outside(tree, unix)


def _uncommon(process: ProcessView, descriptor: Descriptor, protocol: str) -> Finding:
    has = f"has descriptor {descriptor.number} on"
    if protocol in _CARRIED_WHEN_IDLE:
        code, what = _CARRIED_WHEN_IDLE[protocol]
        return process.finding(
            Severity.WARN, code, f"{has} {what}", "close it when it is not needed"
        )
    code, what, advice = _NOT_CARRIED.get(
        protocol, ("socket", f"a socket of kind {protocol}", "turn off the feature that opens it")
    )
    return process.finding(Severity.REFUSE, code, f"{has} {what}", advice)


def _to_outside(tree: TreeView, unix: list[tuple[ProcessView, Descriptor]]) -> Iterator[Finding]:
    peers = unix_peers()
    found = [
        (process, descriptor, peer)
        for process, descriptor in unix
        if (peer := peers.get(descriptor.inode("socket"), 0)) and peer not in tree.socket_inodes
    ]
    now, still = (_inodes_now(tree), unix_peers()) if found else (frozenset(), {})
    for process, descriptor, peer in found:
        inode = descriptor.inode("socket")
        if peer not in now and still.get(inode) == peer and still.get(peer) == inode:
            yield process.finding(
                Severity.REFUSE,
                "unix_socket",
                f"has descriptor {descriptor.number} connected by a unix socket to a process"
                f" outside the tree (peer inode {peer}: `ss -xp` names it)",
                "turn that client off (D-Bus, nscd, a monitoring agent), or run both in the worker",
            )


def _inodes_now(tree: TreeView) -> frozenset[int]:
    """Sockets of the tree at a second look.

    A tree that runs may have accepted a connection in a process that was read just before, or have
    closed it since. An end that was accepted before this look, is open after it, and that nobody of
    the tree has, is outside. One that waits to be accepted has no inode yet; of one that is closed
    newer kernels (6.18) go on telling the inode, but it names no peer any more.
    """
    return frozenset(
        inode
        for pid in proc.walk(tree.processes[0].process.pid)
        for number, target in descriptor_targets(pid)
        if (inode := Descriptor(number, target, flags=0, mount=-1, info="").inode("socket"))
    )


def unix_peers() -> dict[int, int]:
    """Peer inode of every connected stream socket of this network namespace, by inode.

    /proc/net/unix does not tell peers, so the kernel is asked by sock_diag. Empty when it does not
    answer that (CONFIG_UNIX_DIAG), which CRIU needs too and complains about better than we could.
    """
    peers: dict[int, int] = {}
    try:
        with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, _NETLINK_SOCK_DIAG) as netlink:
            netlink.settimeout(2.0)
            request = struct.pack(
                "=BBHIIIII", socket.AF_UNIX, 0, 0, 0xFFFFFFFF, 0, _UDIAG_SHOW_PEER, 0, 0
            )
            header = struct.pack(
                "=IHHII", 16 + len(request), _SOCK_DIAG_BY_FAMILY, _NLM_F_REQUEST_DUMP, 1, 0
            )
            netlink.send(header + request)
            for _ in range(_ANSWERS_MAX):
                if not _read_answer(netlink.recv(_ANSWER_BYTES), peers):
                    break
    except OSError:
        return peers
    return peers


def _read_answer(answer: bytes, peers: dict[int, int]) -> bool:
    """Take the sockets of one datagram; False when it was the last."""
    at = 0
    while at + 16 <= len(answer):
        length, kind = struct.unpack_from("=IH", answer, at)
        if kind in (_NLMSG_DONE, _NLMSG_ERROR) or length < 16:
            return False
        _, socket_type, _, _, inode = struct.unpack_from("=BBBBI", answer, at + 16)
        peer = _peer(answer[at + 32 : at + length])
        if peer and socket_type in _CONNECTED_TYPES:
            peers[inode] = peer
        at += (length + 3) & ~3
    return True


def _peer(attributes: bytes) -> int:
    at = 0
    while at + 8 <= len(attributes):
        length, kind = struct.unpack_from("=HH", attributes, at)
        if kind == _UNIX_DIAG_PEER:
            return int(struct.unpack_from("=I", attributes, at + 4)[0])
        at += max(4, (length + 3) & ~3)
    return 0


def _protocol(pid: int, descriptor: Descriptor) -> str:
    """The kernel's name of the socket's protocol; empty when the socket has gone."""
    try:
        name = os.getxattr(f"/proc/{pid}/fd/{descriptor.number}", "system.sockprotoname")
    except OSError:
        return ""
    return name.rstrip(b"\0").decode()
