"""Which rank is at the other end of a connection to the endpoint: both ends are on this node."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable
from pathlib import Path

from worker_shim.process.view import descriptor_targets

_SOCKET = re.compile(r"socket:\[(\d+)\]")


def owners(ports: Collection[int], pids: Iterable[int]) -> dict[int, int]:
    """Of which of these processes each of these local ports is; ports of others are left out."""
    inodes = _inodes(ports) if ports else {}
    if not inodes:
        return {}
    found = {}
    for pid in pids:
        for _, target in descriptor_targets(pid):
            match = _SOCKET.fullmatch(target)
            port = inodes.get(int(match[1])) if match else None
            if port is not None:
                found[port] = pid
    return found


def _inodes(ports: Collection[int]) -> dict[int, int]:
    """Port by inode, of connections on the loopback address in this network namespace."""
    found = {}
    try:
        lines = Path("/proc/self/net/tcp").read_text().splitlines()[1:]
    except OSError:
        return {}
    for line in lines:
        words = line.split()
        address, _, port = words[1].partition(":")
        if address == "0100007F" and int(port, 16) in ports and words[9] != "0":
            found[int(words[9])] = int(port, 16)
    return found
