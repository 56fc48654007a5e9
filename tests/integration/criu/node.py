"""A shim in small, for tests: runs inside a lab host, does what it is told over stdin and stdout.

The drivers are the real ones. Starting and signalling trees is done here by hand, so that these
tests depend on nothing but the drivers they are about.
"""

from __future__ import annotations

import asyncio
import os
import pickle
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from coordinator.core.errors import AllstopError
from coordinator.core.model import Finding
from worker_shim.agent.putting_back import lacking
from worker_shim.criu.driver import CriuDriver
from worker_shim.criu.tasks import stat_fields, states
from worker_shim.files.driver import LinuxFileDriver
from worker_shim.files.port import OpenFile
from worker_shim.network.driver import NftNetworkDriver
from worker_shim.process import proc, watches
from worker_shim.process.port import Tree, TreeProcess
from worker_shim.process.runner import CommandRunner
from worker_shim.process.view import view

WAIT_S = 20.0
AT_ONCE = 3


class Node:
    """Everything a test may call by name."""

    def __init__(self) -> None:
        commands = CommandRunner()
        self.criu = CriuDriver(commands, at_once=AT_ONCE)
        self.network = NftNetworkDriver(commands)
        self.files = LinuxFileDriver()

    def launch(self, argv: list[str], log: str, first_pid: int = 1000) -> int:
        """Start a program clean: own session, no descriptor but the log, pid from `first_pid`."""
        Path("/proc/sys/kernel/ns_last_pid").write_text(str(first_pid - 1))
        with open(os.devnull) as nothing, open(log, "a") as out:
            child = subprocess.Popen(
                argv, stdin=nothing, stdout=out, stderr=out, start_new_session=True, cwd="/"
            )
        return child.pid

    def look(self, root: int) -> Tree:
        """The tree, root first."""
        pids = [root] if stat_fields(Path(f"/proc/{root}/stat")) else []
        for pid in pids:
            for thread in Path(f"/proc/{pid}/task").iterdir():
                pids += [int(child) for child in (thread / "children").read_text().split()]
        return Tree(tuple(TreeProcess(pid, 0, 0, "", (), (), 0) for pid in pids))

    def stop(self, root: int) -> Tree:
        """SIGSTOP everything and wait until it is stopped."""
        self._signal(root, signal.SIGSTOP)
        self._until(lambda: set(states(self.look(root).pids).values()) <= set("TZ"))
        return self.look(root)

    def watches(self, root: int) -> tuple[Finding, ...]:
        """What the preflight says of registrations of epoll."""
        return tuple(watches.check(view(proc.look(root))))

    async def settle(self, tree: Tree) -> int:
        """End those that CRIU cannot dump."""
        return await watches.end(tree)

    def go_on(self, root: int) -> None:
        """SIGCONT everything."""
        self._signal(root, signal.SIGCONT)

    def kill(self, root: int) -> None:
        """SIGKILL everything and wait until every pid is free again."""
        pids = self.look(root).pids
        self._signal(root, signal.SIGKILL)
        if pids:
            os.waitpid(root, 0)
        self._until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in pids))

    def end(self, root: int, pid: int = 0) -> int:
        """SIGTERM one process, wait for the root and return its exit code."""
        os.kill(pid or root, signal.SIGTERM)
        return self.wait(root)

    def wait(self, root: int) -> int:
        """Wait for the root, a child of this process, and return its exit code."""
        ended: list[int] = []

        def reaped() -> bool:
            pid, status = os.waitpid(root, os.WNOHANG)
            ended.extend([os.waitstatus_to_exitcode(status)] if pid else [])
            return bool(pid)

        self._until(reaped)
        return ended[0]

    async def cancel_dump(self, root: int, images: Path) -> None:
        """Begin a dump and give it up while CRIU writes pages, with the sockets in repair mode."""
        dump = asyncio.create_task(self.criu.dump(root, images, deadline_s=30))
        pages = images / "pages-1.img"
        for _ in range(5000):
            await asyncio.sleep(0.001)
            if dump.done() or (pages.exists() and pages.stat().st_size > 1 << 20):
                break
        assert not dump.done(), "the dump was too fast to be cancelled"
        dump.cancel()
        await asyncio.wait([dump])
        assert dump.cancelled()

    async def dump_all(self, roots: dict[int, Path], deadline_s: float) -> None:
        """Dump several trees at once."""
        dumps = (self.criu.dump(root, into, deadline_s=deadline_s) for root, into in roots.items())
        await asyncio.gather(*dumps)

    async def restore_all(self, images: list[Path], deadline_s: float) -> None:
        """Bring several trees back at once."""
        await asyncio.gather(*(self.criu.restore(one, deadline_s=deadline_s) for one in images))

    def states(self, root: int) -> dict[int, str]:
        """State letters of every task of the tree."""
        return states(self.look(root).pids)

    def lacking(self, images: Path, files: tuple[OpenFile, ...]) -> list[str]:
        """What FETCH looks for among the files that CRIU will open by name."""
        return lacking(self.criu.files(images), files)

    def _signal(self, root: int, number: signal.Signals) -> None:
        for pid in self.look(root).pids:
            os.kill(pid, number)

    def _until(self, true: Callable[[], bool]) -> None:
        until = time.monotonic() + WAIT_S
        while not true():
            if time.monotonic() > until:
                raise AssertionError("waited in vain")
            time.sleep(0.002)


async def serve() -> None:
    """One call after another: (path of the method, arguments, keywords) in, (ok, value, ms) out."""
    node, calls = Node(), sys.stdin.buffer
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "wb")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # what is logged must not mix with answers
    while True:
        try:
            path, arguments, keywords = pickle.load(calls)
        except EOFError:
            return
        started = time.monotonic()
        try:
            method: Any = node
            for name in path.split("."):
                method = getattr(method, name)
            value = method(*arguments, **keywords)
            answer = (True, await value if asyncio.iscoroutine(value) else value)
        except AllstopError as error:
            answer = (False, error.to_fields())
        except Exception as error:
            answer = (False, {"kind": "", "what": f"{type(error).__name__}: {error}"})
        pickle.dump((*answer, round((time.monotonic() - started) * 1000, 1)), answers)
        answers.flush()


if __name__ == "__main__":
    asyncio.run(serve())
