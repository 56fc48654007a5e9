"""The fronts of a coordinator: processes that share its port, carry shims and answer operators."""

from __future__ import annotations

import asyncio
import random
import sys
from contextlib import suppress
from dataclasses import replace
from typing import Self

import structlog

from coordinator.core.errors import BadRequest, SetupError
from coordinator.server.addresses import HeldPorts
from coordinator.server.front import SERVING, FrontOptions

log = structlog.get_logger(__name__)

FRONTS_MAX = 64
NAME_CHARS_MAX = 50  # of the coordinator's, so that a front's is a name too
START_DEADLINE_S = 30.0
STOP_DEADLINE_S = 5.0
BACKOFF_FIRST_S = 0.2
BACKOFF_LAST_S = 5.0
STEADY_S = 10.0  # after so long a front that ends is started again with the first back-off
LEASE_S = 15.0  # a front that gives no sign of life for so long is killed
SECOND_LOOK_S = 2.0  # before that: it may be us who could not listen

Process = asyncio.subprocess.Process


class Fronts:
    """Keeps so many fronts running; one that ends or hangs is started again.

    `async with` starts them, with all ports open when it returns, and ends them.
    """

    def __init__(self, count: int, options: FrontOptions, *, lease_s: float = LEASE_S) -> None:
        """`options` are those of each front; its name is made of the one given."""
        if not 1 <= count <= FRONTS_MAX:
            raise BadRequest(f"{count} fronts", advice=f"between 1 and {FRONTS_MAX}")
        self._options = options
        self._numbers = range(1, count + 1)
        self._lease_s = lease_s
        self._ports: HeldPorts | None = None
        self._running: dict[int, Process] = {}
        self._tasks: list[asyncio.Task[None]] = []

    @property
    def addresses(self) -> tuple[str, ...]:
        """What clients dial, with the real ports."""
        return self._options.listen

    @property
    def pids(self) -> tuple[int, ...]:
        """Of the fronts that run now."""
        return tuple(process.pid for process in self._running.values())

    async def __aenter__(self) -> Self:
        """Raises SetupError when a port is taken or a front does not start; nothing is left."""
        self._ports = HeldPorts(self._options.listen)
        self._options = replace(self._options, listen=self._ports.addresses)
        try:
            starting = [self._start(number) for number in self._numbers]
            for failed in await asyncio.gather(*starting, return_exceptions=True):
                if isinstance(failed, BaseException):
                    raise failed
        except BaseException:
            await self._end()
            raise
        self._tasks = [
            asyncio.create_task(self._keep(number), name=f"front {number}")
            for number in self._numbers
        ]
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._end()

    async def _end(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await asyncio.gather(*(self._stop(number) for number in list(self._running)))
        if self._ports is not None:
            self._ports.release()

    async def _start(self, number: int) -> None:
        """Start one and wait until it serves; raises SetupError, with nothing left of it."""
        # -P: a `coordinator` directory in the user's own directory is not us.
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-P", "-m", "coordinator.server.front"),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            start_new_session=True,  # a Ctrl-C is for us, and we tell the fronts
        )
        self._running[number] = process
        name = f"{self._options.name[:NAME_CHARS_MAX]}-front-{number}"
        assert process.stdin is not None
        assert process.stdout is not None
        said = None
        with suppress(TimeoutError, ConnectionError):
            async with asyncio.timeout(START_DEADLINE_S):
                process.stdin.write(replace(self._options, name=name).encoded())
                process.stdin.write_eof()
                said = await process.stdout.readline()
        if said is None or said.split() != [SERVING.encode()]:
            await self._stop(number, ends=said == b"")
            raise SetupError(
                f"front {number} does not start (it ended with {process.returncode})",
                advice="the log says why",
            )

    async def _keep(self, number: int) -> None:
        """Start this front again whenever it has ended; slower while it ends soon."""
        backoff_s, loop = BACKOFF_FIRST_S, asyncio.get_running_loop()
        while True:
            began = loop.time()
            if number in self._running:
                code = await self._watch(number)
                log.warning("a front has ended, and is started again", front=number, code=code)
            if loop.time() - began >= STEADY_S:
                backoff_s = BACKOFF_FIRST_S
            await asyncio.sleep(backoff_s * random.uniform(0.5, 1.0))
            backoff_s = min(BACKOFF_LAST_S, backoff_s * 2)
            try:
                await self._start(number)
            except (SetupError, OSError) as error:
                log.error("a front does not start", front=number, error=str(error))

    async def _watch(self, number: int) -> int | None:
        """Wait until a front has ended, kill it when it hangs; its exit code."""
        process = self._running[number]
        silent = 0
        while silent < 2:
            try:
                async with asyncio.timeout(SECOND_LOOK_S if silent else self._lease_s):
                    if not await _said(process):
                        break
                silent = 0
            except TimeoutError:
                silent += 1
        if silent:
            log.error("a front hangs and is killed", front=number, silent_s=self._lease_s)
            with suppress(ProcessLookupError):
                process.kill()
        await self._stop(number, ends=True)
        return process.returncode

    async def _stop(self, number: int, *, ends: bool = False) -> None:
        """End one, gently first; one that `ends` by itself is waited for before that.

        A signal to a child that has just ended takes its exit code away from whoever waits for it.
        """
        process = self._running.pop(number)
        first = (_leave,) if ends else ()
        for end in (*first, process.terminate, process.kill):
            if process.returncode is not None:
                return
            with suppress(ProcessLookupError):
                end()
            with suppress(TimeoutError):
                async with asyncio.timeout(STOP_DEADLINE_S):
                    await process.wait()


def _leave() -> None:
    """Nothing needs to be done."""


async def _said(process: Process) -> bytes:
    """What it has said since; empty when it has closed its side, as it does by ending."""
    assert process.stdout is not None
    return await process.stdout.read(4096)
