"""The process driver for Linux: starts, watches, stops and ends a worker's tree."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import os
import signal
import time
from collections.abc import Callable, Iterable
from typing import Any

from coordinator.core.errors import BugError, DriverError
from coordinator.core.model import Finding
from worker_shim.compatibility.node import NodeSight, without_gpus
from worker_shim.process import launching, proc, watches
from worker_shim.process.launcher import PR_SET_CHILD_SUBREAPER
from worker_shim.process.orphans import Orphans
from worker_shim.process.port import LaunchSpec, Tree, TreeProcess
from worker_shim.process.preflight import inspect
from worker_shim.process.waiting import ProcessHandle

POLL_S = 0.002
ENDED_MAX = 1000  # exit codes kept for a `wait` that comes later


class LinuxProcessDriver:
    """Implements `ProcessDriver`. One per shim: it alone reaps the shim's workers."""

    def __init__(self, node: Callable[[], NodeSight] = without_gpus) -> None:
        """Make this process the one that orphans of dead workers come to: it reaps them itself.

        Containers often have a PID 1 that reaps late or never, and a restore needs every pid free.
        `node` is asked by the preflight.
        """
        self._node = node
        ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, ctypes.c_ulong(1), 0, 0, 0)
        self._ended: dict[int, int] = {}  # pid: exit code, reaped while nobody waited
        self._waiting: dict[int, set[asyncio.Future[int]]] = {}
        self._members: dict[int, tuple[TreeProcess, ...]] = {}  # of each root, as last seen
        self._orphans = Orphans(lambda pid: pid in self._members or pid in self._waiting)

    async def launch(self, spec: LaunchSpec, *, deadline_s: float) -> int:
        """Start the worker clean and return its pid, a child of this process.

        Clean: own session, orphans come back to its root, no descriptor above 2, io_uring answered
        with ENOSYS by seccomp. Raises DriverError (missing binary, bad cwd) with nothing left.
        """
        if not spec.argv:
            raise BugError("a worker without a command")
        launching.raise_pid_counter(spec.first_pid - 1)
        pid, told = launching.start_launcher(spec)
        self._ended.pop(pid, None)
        self._members.pop(pid, None)
        try:
            failure = await launching.launch_failure(told, spec, deadline_s)
        except asyncio.CancelledError:
            self._kill_launcher(pid)
            raise
        if failure is not None:
            self._kill_launcher(pid)
            raise failure
        self.look(pid)
        return pid

    def look(self, root_pid: int) -> Tree:
        """Scan the tree now; an empty tree when the root is gone."""
        self._orphans.sweep()
        tree = proc.look(root_pid)
        if tree.processes:
            self._members[root_pid] = tree.processes
        return tree

    def known_roots(self) -> tuple[int, ...]:
        """Roots of the trees that were looked at and not killed here."""
        return tuple(self._members)

    async def stop(self, root_pid: int, *, deadline_s: float) -> Tree:
        """SIGSTOP the whole tree and wait until every task is stopped; return the tree.

        Parents first, and again until a scan finds nobody new: a stopped process forks no more.
        Raises DriverError naming the task that does not stop; the caller undoes with `go_on`.
        """
        deadline = time.monotonic() + deadline_s
        told: set[tuple[int, int]] = set()
        while True:
            tree = self.look(root_pid)
            if not tree.processes:
                raise DriverError(f"the worker (pid {root_pid}) is gone", advice="look at its log")
            new = [p for p in tree.processes if (p.pid, p.start_ticks) not in told]
            for process in new:
                proc.send(process, signal.SIGSTOP)
                told.add((process.pid, process.start_ticks))
            moving = [process for process in tree.processes if proc.moves(process)]
            if not new and not moving:
                return tree
            if time.monotonic() >= deadline:
                raise _does_not_stop(moving or new, deadline_s)
            if not new:
                for process in _stopped_before_exec(tree, moving):
                    proc.send(process, signal.SIGCONT)
                    told.discard((process.pid, process.start_ticks))
                await asyncio.sleep(POLL_S)

    async def settle(self, tree: Tree) -> int:
        """End registrations of epoll that CRIU cannot dump; return how many there were."""
        return await watches.end(tree)

    async def go_on(self, root_pid: int) -> None:
        """SIGCONT the whole tree, children first, or what is left of it once the root has ended."""
        for process in reversed(proc.look(root_pid).processes or self.left(root_pid).processes):
            proc.send(process, signal.SIGCONT)

    def terminate(self, root_pid: int) -> None:
        """SIGTERM to the root's process group, as torchrun sends it; no error when it is gone."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(root_pid, signal.SIGTERM)  # every root leads a session of its own

    async def kill(self, root_pid: int, *, deadline_s: float) -> None:
        """SIGKILL the whole tree and wait until every pid of it is free again.

        The root goes last: its orphans come back to it, so none is lost from sight. Where the root
        is gone already, what was last seen below it is ended. Raises DriverError naming a process
        that stays (stuck in the kernel, or reaped by nobody).
        """
        deadline = time.monotonic() + deadline_s
        seen: dict[int, TreeProcess] = {p.pid: p for p in self._members.pop(root_pid, ())}
        told: set[tuple[int, int]] = set()
        grown = True  # somebody was told just now, who may have started another one before
        while True:
            if grown:
                below = proc.look(root_pid).processes
                seen.update((process.pid, process) for process in below)
            self._reap(root_pid)
            left = [process for process in seen.values() if self._remains(process)]
            if not left:
                return
            if time.monotonic() >= deadline:
                raise _does_not_end(left, deadline_s)
            grown = _end_next(root_pid, left, told)
            await asyncio.sleep(0 if grown else POLL_S)

    def left(self, root_pid: int) -> Tree:
        """What lives of the processes last seen below a root that has ended."""
        below = (each for each in self._members.get(root_pid, ()) if each.pid != root_pid)
        return Tree(tuple(filter(_lives, below)))

    async def end_left(self, root_pid: int, *, deadline_s: float) -> None:
        """SIGKILL what was last seen below a root that has ended, until every pid of it is free.

        The root's own pid may be somebody else's by now. Raises DriverError naming a process that
        stays.
        """
        deadline = time.monotonic() + deadline_s
        left = [each for each in self._members.pop(root_pid, ()) if each.pid != root_pid]
        while left := [each for each in left if self._remains(each)]:
            if time.monotonic() >= deadline:
                raise _does_not_end(left, deadline_s)
            for process in filter(_lives, left):
                proc.send(process, signal.SIGKILL)
            await asyncio.sleep(POLL_S)

    def reap(self, pids: Iterable[int]) -> None:
        """Free those of these ids whose processes have ended as orphans of this shim.

        Not for ids that other code of this process is about to collect itself: those were started
        by it, and are gone a moment after their end.
        """
        self._orphans.reap(pids)

    async def wait(self, root_pid: int) -> int:
        """Wait for the root (a child of this process) and return its exit code, -N for signal N.

        Works for a tree that CRIU restored as our child too. Raises DriverError when there is no
        such child. May be asked by several at once.
        """
        try:
            handle = ProcessHandle(root_pid)
        except ProcessLookupError:
            if root_pid in self._ended:
                return self._ended[root_pid]
            raise _no_child(root_pid) from None
        stat = proc.read_stat(root_pid)
        if stat is None or stat.parent != os.getpid():
            handle.close()
            raise _no_child(root_pid)
        answer: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._ended.pop(root_pid, None)  # of an earlier process of this pid
        self._waiting.setdefault(root_pid, set()).add(answer)
        with handle:
            ended = asyncio.ensure_future(handle.ended(None))
            try:
                either: set[asyncio.Future[Any]] = {ended, answer}
                await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
                if not answer.done():
                    self._reap(root_pid)
                if not answer.done():
                    raise _no_child(root_pid)
                return answer.result()
            finally:
                ended.cancel()
                self._waiting.get(root_pid, set()).discard(answer)

    def preflight(self, tree: Tree) -> tuple[Finding, ...]:
        """Everything in the tree that cannot be dumped or restored, or only with a warning."""
        return inspect(tree, self._node)

    def raise_pid_counter(self, above: int) -> None:
        """Make the next pid of this namespace greater than `above`."""
        launching.raise_pid_counter(above)

    def _kill_launcher(self, pid: int) -> None:
        """It has no children yet and holds nothing, so the wait is short."""
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)

    def _reap(self, pid: int) -> None:
        """Collect the exit code if the process is ours and has ended; tell whoever waits."""
        try:
            result = os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG)
        except ChildProcessError:
            return
        if result is None:
            return
        code = result.si_status if result.si_code == os.CLD_EXITED else -result.si_status
        waiting = self._waiting.pop(pid, set())
        for answer in waiting:
            if not answer.done():
                answer.set_result(code)
        if not waiting:
            self._ended[pid] = code
            if len(self._ended) > ENDED_MAX:
                del self._ended[next(iter(self._ended))]

    def _remains(self, process: TreeProcess) -> bool:
        """True while the pid is still taken by this process; reaps it where it became ours."""
        stat = proc.read_stat(process.pid)
        if stat is None or stat.start_ticks != process.start_ticks:
            return False
        if stat.state in "ZX" and stat.parent == os.getpid():
            self._reap(process.pid)
        return True


def _stopped_before_exec(tree: Tree, moving: list[TreeProcess]) -> list[TreeProcess]:
    """Stopped children that a parent waits for in vfork, where no SIGSTOP reaches it.

    They are let run to their exec and stopped again. Shells and Python's subprocess use vfork.
    """
    parents = {process.pid for process in moving}
    return [
        process
        for process in tree.processes
        if process.parent in parents
        and process.state == "T"
        and proc.shares_memory(process.parent, process.pid)
    ]


def _end_next(root_pid: int, left: list[TreeProcess], told: set[tuple[int, int]]) -> bool:
    """Kill all but the root, which is stopped first so that it does not react to their end.

    The root is killed when nobody new was found below it: who has been sent SIGKILL forks no more.
    Returns whether anybody was told who was not told before.
    """
    new = [each for each in left if (each.pid, each.start_ticks) not in told and _lives(each)]
    others = [process for process in new if process.pid != root_pid]
    for process in new:
        if process.pid == root_pid:
            proc.send(process, signal.SIGSTOP if others else signal.SIGKILL)
    for process in others:
        proc.send(process, signal.SIGKILL)
    told.update((each.pid, each.start_ticks) for each in others or new)
    return bool(new)


def _lives(process: TreeProcess) -> bool:
    stat = proc.read_stat(process.pid)
    return stat is not None and stat.start_ticks == process.start_ticks and stat.state not in "ZX"


def _does_not_stop(processes: list[TreeProcess], waited_s: float) -> DriverError:
    for process in processes:
        moving = proc.first_moving_task(process.pid)
        if moving is None:
            continue
        tid, stat = moving
        return DriverError(
            f"task {tid} ({stat.name}) of pid {process.pid} is in state {stat.state} and did not"
            f" stop within {waited_s:.1f} s",
            advice="state D waits for a device or a file system: look at"
            f" /proc/{process.pid}/task/{tid}/stack",
        )
    names = ", ".join(f"{process.pid} ({process.argv[0]})" for process in processes[:5])
    return DriverError(
        f"the tree grew all the time for {waited_s:.1f} s and could not be stopped: {names}",
        advice="the worker starts processes without end",
    )


def _does_not_end(processes: list[TreeProcess], waited_s: float) -> DriverError:
    process = processes[0]
    stat = proc.read_stat(process.pid)
    state, parent = (stat.state, stat.parent) if stat is not None else ("?", 0)
    return DriverError(
        f"pid {process.pid} ({process.argv[0]}) is still there {waited_s:.1f} s after SIGKILL,"
        f" state {state}, parent {parent}",
        advice="state Z: its parent does not reap it (PID 1 of the namespace must); "
        "state D: it is stuck in the kernel",
        details=tuple(f"pid {p.pid} {' '.join(p.argv)}" for p in processes[:20]),
    )


def _no_child(pid: int) -> DriverError:
    return DriverError(
        f"pid {pid} is not a child of this shim, so its exit code cannot be learnt",
        advice="a restored tree must come back by `criu restore --restore-sibling`",
    )
