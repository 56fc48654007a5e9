"""Waiting for processes through pidfds: no polling, no signal handlers, every wait bounded."""

from __future__ import annotations

import asyncio
import os
import select
import signal
from collections.abc import Iterable


class ProcessHandle:
    """A pidfd of one process, so that neither signals nor waits can meet a reused pid."""

    def __init__(self, pid: int) -> None:
        """Open the pidfd; raises ProcessLookupError when there is no such process."""
        self.pid = pid
        self._fd = os.pidfd_open(pid)

    def __enter__(self) -> ProcessHandle:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the pidfd; safe to call twice."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def send(self, number: signal.Signals) -> bool:
        """Send a signal; False when the process has already ended."""
        try:
            signal.pidfd_send_signal(self._fd, number)
        except ProcessLookupError:
            return False
        return True

    async def ended(self, timeout_s: float | None) -> bool:
        """Wait until the process has ended (a zombie has); False when the time ran out first.

        `timeout_s=None` waits as long as the process lives: only for a worker's whole life, which
        has no deadline of its own.
        """
        loop = asyncio.get_running_loop()
        done = loop.create_future()

        def readable() -> None:
            if not done.done():
                done.set_result(None)

        # epoll is level-triggered, so an end before this call is seen too. The duplicate lets two
        # waits for one process coexist.
        watched = os.dup(self._fd)
        loop.add_reader(watched, readable)
        try:
            async with asyncio.timeout(timeout_s):
                await done
        except TimeoutError:
            return False
        finally:
            loop.remove_reader(watched)
            os.close(watched)
        return True


class Endings:
    """Which of several processes have ended, told at once and by one system call."""

    def __init__(self, pids: Iterable[int]) -> None:
        """Open a pidfd each; one that is not there has ended."""
        self._pids: dict[int, int] = {}
        self._gone: list[int] = []
        self._poll = select.poll()
        for pid in pids:
            try:
                fd = os.pidfd_open(pid)
            except ProcessLookupError:
                self._gone.append(pid)
                continue
            self._pids[fd] = pid
            self._poll.register(fd, select.POLLIN)

    def __enter__(self) -> Endings:
        return self

    def __exit__(self, *_: object) -> None:
        for fd in self._pids:
            os.close(fd)
        self._pids.clear()

    def seen(self) -> tuple[int, ...]:
        """Pids of those that have ended, zombies included; does not wait."""
        return (*self._gone, *(self._pids[fd] for fd, _ in self._poll.poll(0)))
