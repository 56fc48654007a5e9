"""A process driver without processes: trees as data, with the same manners as the real one."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from dataclasses import replace

from coordinator.core.errors import DriverError
from coordinator.core.model import Finding
from worker_shim.process.port import LaunchSpec, Tree, TreeProcess

ROOT_STATE, STOPPED = "S", "T"


class FakeProcessDriver:
    """Implements `ProcessDriver` in memory; a test decides when workers fork and end."""

    def __init__(self) -> None:
        self.last_pid = 0
        self.trees: dict[int, tuple[TreeProcess, ...]] = {}
        self.exit_codes: dict[int, int] = {}
        self.findings: tuple[Finding, ...] = ()  # what `preflight` answers
        self.missing: set[str] = set()  # programs that are not installed
        self.stubborn: set[int] = set()  # pids that neither stop nor end
        self.terminated: list[int] = []  # roots that got SIGTERM
        self._changed = asyncio.Condition()

    # -- what a test does ------------------------------------------------------------------------

    def fork(self, root_pid: int, *, rank: int = -1, argv: Sequence[str] = ("rank",)) -> int:
        """A new process below the root."""
        child = replace(self._new(argv), parent=root_pid, rank=rank, local_rank=rank)
        self.trees[root_pid] = (*self.trees[root_pid], child)
        return child.pid

    async def end(self, root_pid: int, exit_code: int) -> None:
        """The root ends by itself."""
        self.trees.pop(root_pid)
        self.exit_codes[root_pid] = exit_code
        async with self._changed:
            self._changed.notify_all()

    def bring_back(self, processes: Sequence[TreeProcess]) -> None:
        """A tree is here again, as after a restore."""
        self.trees[processes[0].pid] = tuple(processes)
        self.exit_codes.pop(processes[0].pid, None)

    # -- the port --------------------------------------------------------------------------------

    async def launch(self, spec: LaunchSpec, *, deadline_s: float) -> int:
        """Start a tree of one process."""
        if spec.argv[0] in self.missing:
            raise DriverError(
                f"cannot start the worker: program {spec.argv[0]}: No such file or directory"
            )
        self.raise_pid_counter(spec.first_pid - 1)
        root = self._new(spec.argv)
        self.bring_back([root])
        return root.pid

    def look(self, root_pid: int) -> Tree:
        """The tree as it is."""
        return Tree(self.trees.get(root_pid, ()))

    async def stop(self, root_pid: int, *, deadline_s: float) -> Tree:
        """Stop every process but the stubborn ones, which raise DriverError."""
        if root_pid not in self.trees:
            raise DriverError(f"the worker (pid {root_pid}) is gone")
        self._set_state(root_pid, STOPPED)
        self._refuse_stubborn(root_pid, f"did not stop within {deadline_s:.1f} s")
        return self.look(root_pid)

    async def settle(self, tree: Tree) -> int:
        """Nothing is to be mended."""
        return 0

    async def go_on(self, root_pid: int) -> None:
        """Let every process run."""
        self._set_state(root_pid, ROOT_STATE)

    def terminate(self, root_pid: int) -> None:
        """Remember it: who ends of it is up to the test."""
        if root_pid in self.trees:
            self.terminated.append(root_pid)

    async def kill(self, root_pid: int, *, deadline_s: float) -> None:
        """End the tree."""
        self._refuse_stubborn(root_pid, f"is still there {deadline_s:.1f} s after SIGKILL")
        if root_pid in self.trees:
            await self.end(root_pid, -9)

    def left(self, root_pid: int) -> Tree:
        """Nothing."""
        return Tree()

    async def end_left(self, root_pid: int, *, deadline_s: float) -> None:
        """Nothing is left of a tree that has ended."""

    def reap(self, pids: Iterable[int]) -> None:
        """Nobody is an orphan here."""

    async def wait(self, root_pid: int) -> int:
        """Wait for the root to end."""
        if root_pid not in self.trees and root_pid not in self.exit_codes:
            raise DriverError(f"pid {root_pid} is not a child of this shim")
        async with self._changed:
            await self._changed.wait_for(lambda: root_pid not in self.trees)
        return self.exit_codes[root_pid]

    def preflight(self, tree: Tree) -> tuple[Finding, ...]:
        """What the test said."""
        return self.findings

    def raise_pid_counter(self, above: int) -> None:
        """The next pid is greater than `above`."""
        self.last_pid = max(self.last_pid, above)

    def _new(self, argv: Sequence[str]) -> TreeProcess:
        self.last_pid += 1
        return TreeProcess(
            pid=self.last_pid,
            parent=1,
            start_ticks=self.last_pid,
            state=ROOT_STATE,
            argv=tuple(argv),
            threads=(self.last_pid,),
            rss_bytes=1 << 20,
        )

    def _set_state(self, root_pid: int, state: str) -> None:
        if root_pid in self.trees:
            self.trees[root_pid] = tuple(
                process if process.pid in self.stubborn else replace(process, state=state)
                for process in self.trees[root_pid]
            )

    def _refuse_stubborn(self, root_pid: int, what: str) -> None:
        for process in self.trees.get(root_pid, ()):
            if process.pid in self.stubborn:
                raise DriverError(f"pid {process.pid} ({process.argv[0]}) {what}")
