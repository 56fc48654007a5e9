"""What a shim that was killed left on its node: found and ended by the next one.

Where the shim had a PID namespace of its own its processes died with it; in a container it may
not have had one, and its network lock outlives it in either case. Whose a worker is, is told by a
file lock on its run directory, which the kernel takes from a dead shim.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
import time
from contextlib import suppress
from functools import partial
from pathlib import Path

from coordinator.core.errors import Busy
from worker_shim.agent.ports import PAGE, Drivers
from worker_shim.agent.strays import kill_all, kill_strays
from worker_shim.images.staging import OWNER, Staging

CLAIM = "shim"  # in the run directory of a worker; holds the pid of the shim that has it
UNLOCK_S = 10.0
CLAIM_S = 2.0
CLAIM_POLL_S = 0.05


class Claim:
    """A worker's run directory is this shim's until `release`, or until this process ends."""

    def __init__(self, directory: Path) -> None:
        """Take it; raises Busy while another living shim has it."""
        self.directory = directory
        directory.mkdir(mode=0o755, parents=True, exist_ok=True)
        self._take(
            directory / CLAIM,
            str(directory),
            "end that one first, or give this one a --run-dir of its own",
        )

    def _take(self, path: Path, what: str, advice: str) -> None:
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.read(self._fd, 32).decode(errors="replace").strip()
            self.release()
            raise Busy(
                f"another shim on this machine (pid {holder}) has {what}", advice=advice
            ) from None
        os.ftruncate(self._fd, 0)
        os.pwrite(self._fd, f"{os.getpid()}\n".encode(), 0)

    def release(self) -> None:
        """Let others have it; safe to repeat."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


class NodeClaim(Claim):
    """The staging of a node is this shim's: a sweep may only end what a dead shim left there."""

    def __init__(self, staging: Staging) -> None:
        """Take it; raises Busy while another living shim has it."""
        self.directory = staging.root
        self._take(
            staging.root / f"{staging.node}.{CLAIM}",
            f"node {staging.node} with the staging directory {staging.root}",
            "end that one first, or give this one a --node name (or a --staging directory) of its "
            "own",
        )


async def claim_node(staging: Staging, *, deadline_s: float = CLAIM_S) -> NodeClaim:
    """Take the node's staging; raises Busy when another shim has it until the deadline.

    A shim that is being killed has it until the kernel has ended its last thread.
    """
    until = time.monotonic() + deadline_s
    while True:
        try:
            return NodeClaim(staging)
        except Busy:
            if time.monotonic() >= until:
                raise
        await asyncio.sleep(CLAIM_POLL_S)


async def sweep(drivers: Drivers) -> tuple[str, ...]:
    """End what dead shims of this node left: dumps, workers, network locks, staging, half copies.

    Only for who has claimed the node. Returns what went, for the log. A worker whose shim lives is
    left alone.
    """
    swept = list(await asyncio.to_thread(_end_dumps, drivers))
    for directory in sorted(drivers.run_root.glob("*/[0-9]*")):
        with suppress(Busy):
            claim = Claim(directory)
            try:
                swept += await _end_worker(drivers, directory)
            finally:
                claim.release()
    swept += await asyncio.to_thread(drivers.staging.sweep)
    return (*swept, *await asyncio.to_thread(drivers.store.sweep))


async def _end_worker(drivers: Drivers, directory: Path) -> list[str]:
    name = f"{directory.parent.name}/{directory.name}"
    killed = await asyncio.to_thread(kill_strays, directory / PAGE)
    swept = [f"{killed} processes of {name}"] if killed else []
    if await drivers.network.locked(name):
        await drivers.network.unlock(name, deadline_s=UNLOCK_S)
        swept.append(f"the network lock of {name}")
    return swept


def _end_dumps(drivers: Drivers) -> list[str]:
    """A CRIU outlives its shim, being in a session of its own; it is known by where it writes."""
    staging = drivers.staging
    places = [
        owner.parent
        for owner in staging.root.glob(f"*/*/*/{OWNER}")
        if owner.read_text() == staging.node
    ]
    ended = sum(kill_all(partial(_writing_to, place)) for place in places)
    return [f"{ended} processes of a dump"] if ended else []


def _writing_to(place: Path) -> tuple[int, ...]:
    found = []
    for entry in os.listdir("/proc"):
        if entry.isdigit() and int(entry) != os.getpid():
            with suppress(OSError):
                if f"{place}/".encode() in Path("/proc", entry, "cmdline").read_bytes():
                    found.append(int(entry))
    return tuple(found)
