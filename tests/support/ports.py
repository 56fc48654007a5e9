"""Ports for servers that must be told theirs: free now, and nobody else's in a moment.

Below what the kernel gives to clients and to port 0, and in a range of the lane's own, so that
neither takes a port between its choice here and the server's start.
"""

import itertools
import os
import random
import socket

FIRST, LAST = 12_000, 31_999  # Linux gives clients ports from 32768 on (ip_local_port_range)
PER_LANE = 2_000


def free_port() -> int:
    """A TCP port of the loopback address that is free."""
    return free_ports(1)[0]


def free_ports(number: int) -> list[int]:
    """Loopback ports that are free, all different."""
    lanes = (LAST - FIRST + 1) // PER_LANE
    worker = os.environ.get("PYTEST_XDIST_WORKER", f"gw{lanes - 1}")  # without lanes: the last one
    low = FIRST + int(worker.removeprefix("gw")) % lanes * PER_LANE
    mixed = random.SystemRandom().sample(range(low, low + PER_LANE), PER_LANE)
    found = list(itertools.islice(filter(is_free, mixed), number))
    assert len(found) == number, f"ports {low} to {low + PER_LANE - 1} are all taken"
    return found


def is_free(port: int) -> bool:
    """Whether a server could listen there now."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as servers do, over TIME_WAIT
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
        return True
