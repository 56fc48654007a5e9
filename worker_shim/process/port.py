"""Ports of the process driver: starting a worker clean, looking at its tree, stopping it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from coordinator.core.model import Finding

DEAD = "ZX"  # a zombie, which CRIU saves too


def unheard(rank: int) -> None:
    """Nobody wants to know when a rank arrives."""


@dataclass(frozen=True)
class LaunchSpec:
    """How to start a worker's root process."""

    argv: Sequence[str]
    env: Mapping[str, str]  # the whole environment, hook and control page already in it
    cwd: Path
    log: Path  # stdout and stderr are appended here; the file is opened in the node's namespace
    first_pid: int = 1000  # workers start from here, away from the shim's own helpers


@dataclass(frozen=True)
class TreeProcess:
    """One process of a tree, as /proc shows it."""

    pid: int
    parent: int
    start_ticks: int  # field 22 of stat: tells a reused pid apart
    state: str  # one letter of stat
    argv: tuple[str, ...]
    threads: tuple[int, ...]
    rss_bytes: int
    rank: int = -1  # RANK of its environment, where it is a rank
    local_rank: int = -1


@dataclass(frozen=True)
class Tree:
    """All processes below a worker's root, the root first."""

    processes: tuple[TreeProcess, ...] = field(default=())

    @property
    def pids(self) -> tuple[int, ...]:
        """Process ids, the root's first."""
        return tuple(process.pid for process in self.processes)

    @property
    def living(self) -> frozenset[tuple[int, int]]:
        """Pid and start of every process that has not ended."""
        alive = (process for process in self.processes if process.state not in DEAD)
        return frozenset((process.pid, process.start_ticks) for process in alive)


class ProcessDriver(Protocol):
    """What the agent needs of processes. Everything is asynchronous and bounded by `deadline_s`."""

    async def launch(self, spec: LaunchSpec, *, deadline_s: float) -> int:
        """Start the worker clean and return its pid, a child of this process.

        Clean: own session, no descriptor above 2, io_uring answered with ENOSYS by seccomp.
        Raises DriverError (missing binary, bad cwd) with nothing left running.
        """

    def look(self, root_pid: int) -> Tree:
        """Scan the tree now; an empty tree when the root is gone."""

    async def stop(self, root_pid: int, *, deadline_s: float) -> Tree:
        """SIGSTOP the whole tree and wait until every task is stopped; return the tree.

        Repeats the scan until no new process appeared. Raises DriverError naming the task that
        does not stop; the caller undoes with `go_on`.
        """

    async def settle(self, tree: Tree) -> int:
        """Mend in a stopped tree what CRIU cannot dump and nobody misses; return how much.

        That is registrations of epoll which the process has lost sight of. Raises DriverError.
        """

    async def go_on(self, root_pid: int) -> None:
        """SIGCONT the whole tree, or what is left of it where the root has ended."""

    def terminate(self, root_pid: int) -> None:
        """SIGTERM to the root's process group, as torchrun sends it; no error when it is gone."""

    async def kill(self, root_pid: int, *, deadline_s: float) -> None:
        """SIGKILL the whole tree and wait until it is reaped; no error when it is gone."""

    def left(self, root_pid: int) -> Tree:
        """What lives of the processes last seen below a root that has ended."""

    async def end_left(self, root_pid: int, *, deadline_s: float) -> None:
        """SIGKILL and reap what was last seen below a root that has ended.

        Raises DriverError naming a process that stays.
        """

    def reap(self, pids: Iterable[int]) -> None:
        """Free those of these ids whose processes have ended as orphans of this shim."""

    async def wait(self, root_pid: int) -> int:
        """Wait for the root (a child of this process) and return its exit code, -N for signal N."""

    def preflight(self, tree: Tree) -> tuple[Finding, ...]:
        """Everything in the tree that cannot be dumped or restored, or only with a warning."""

    def raise_pid_counter(self, above: int) -> None:
        """Make the next pid of this namespace greater than `above`."""
