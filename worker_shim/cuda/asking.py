"""The shim's side of the driver's helper: started by need, asked one request at a time, ended."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import sys
import time
from collections.abc import Callable, Mapping
from typing import Any

from coordinator.core.errors import DriverError
from worker_shim.process.ending import end_helper
from worker_shim.process.runner import last_lines

LINE_BYTES_MAX = 1 << 16
WORDS_BYTES_MAX = 1 << 16  # of what it complained, kept for the error when it ends
END_S = 2.0


class HelperProcess:
    """One helper at a time.

    Whoever gives up while it owes an answer ends it, so that nobody reads the answer to another's
    request; whoever gives up while another is answered leaves it alone.
    """

    def __init__(self, module: str, env: Mapping[str, str]) -> None:
        """`env` is added to the environment."""
        self._module, self._env = module, dict(env)
        self._process: asyncio.subprocess.Process | None = None
        self._turn = asyncio.Lock()
        self._words = -1  # a descriptor, of what it says to stderr
        self._ending: set[asyncio.Task[None]] = set()
        self.first_word: dict[str, Any] = {}  # of the last that started

    async def start(self, *, until: float) -> None:
        """Have one that can be asked; raises DriverError, definite, where it cannot be."""
        doing = "starting the driver's helper"
        try:
            async with asyncio.timeout_at(_loop_time(until)), self._turn:
                await self._started()
        except TimeoutError:
            raise _late(doing, definite=True) from None

    async def ask(
        self, request: Callable[[float], dict[str, Any]], doing: str, until: float
    ) -> dict[str, Any]:
        """Have a request carried out and return the answer.

        `request` makes it when its turn has come, of the seconds that are left then; what it raises
        ends the asking before anything was asked. Raises DriverError: definite where the request
        was not handed over.
        """
        asked = False
        try:
            async with asyncio.timeout_at(_loop_time(until)), self._turn:
                helper = await self._started()
                line = json.dumps(request(until - time.monotonic())).encode() + b"\n"
                asked = True
                told = await self._exchange(helper, line, doing)
        except TimeoutError:
            raise _late(doing, definite=not asked) from None
        if "error" in told:
            raise DriverError(f"{doing}: {told['error']}", definite=False)
        return told

    async def close(self) -> None:
        """End it, also in the middle of a request: that one fails."""
        self._drop()
        if self._ending:
            await asyncio.wait(set(self._ending), timeout=END_S)

    async def _started(self) -> asyncio.subprocess.Process:
        if self._process is not None and self._process.returncode is None:
            return self._process
        # preloaded libraries of ours or of the job's have no place beside the driver
        env = {name: value for name, value in os.environ.items() if name != "LD_PRELOAD"}
        self._close_words()
        self._words = os.memfd_create("allstop-helper")
        try:
            self._process = await asyncio.create_subprocess_exec(
                sys.executable,
                "-m",
                self._module,
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=self._words,
                env={**env, **self._env},
                start_new_session=True,
                limit=LINE_BYTES_MAX,
            )
        except OSError as error:
            raise DriverError(
                f"the driver's helper cannot be started: {error}",
                advice="look at the limits of processes and memory of this shim",
            ) from error
        told = await self._exchange(self._process, b"", "starting the driver's helper")
        if "error" in told:
            details = self._complaints()
            self._drop()
            raise DriverError(
                f"the CUDA driver cannot be used: {told['error']}",
                advice="is driver 570 or newer installed, with the extra `gpu`?",
                details=details,
            )
        self.first_word = told
        return self._process

    async def _exchange(
        self, helper: asyncio.subprocess.Process, line: bytes, doing: str
    ) -> dict[str, Any]:
        """Hand a line over and read the answer; however that is left, no answer stays behind."""
        assert helper.stdin is not None
        assert helper.stdout is not None
        try:
            helper.stdin.write(line)
            heard = await helper.stdout.readline()
            if not heard.endswith(b"\n"):
                status = await helper.wait()
                raise DriverError(
                    f"{doing}: the driver's helper ended with {status} in the middle of it",
                    advice="look at the kernel's log",
                    definite=not line,
                    details=self._complaints(),
                )
            told: dict[str, Any] = json.loads(heard)
        except ValueError as error:  # a library of the driver's that prints, or prints much
            if helper is self._process:
                self._drop()
            raise DriverError(
                f"{doing}: the driver's helper has said what it never says: {error}",
                advice="look at what is loaded beside libcuda.so.1",
                definite=not line,
            ) from error
        except BaseException:
            if helper is self._process:
                self._drop()
            raise
        return told

    def _drop(self) -> None:
        """Kill it without waiting; a later request starts the next one."""
        helper, self._process = self._process, None
        self._close_words()
        if helper is None or helper.returncode is not None:
            return
        with contextlib.suppress(ProcessLookupError):
            helper.kill()
        ending = asyncio.get_running_loop().create_task(end_helper(helper, within_s=END_S))
        self._ending.add(ending)
        ending.add_done_callback(self._ending.discard)

    def _complaints(self) -> tuple[str, ...]:
        """The end of what it wrote to stderr."""
        if self._words < 0:
            return ()
        start = max(0, os.fstat(self._words).st_size - WORDS_BYTES_MAX)
        return last_lines(os.pread(self._words, WORDS_BYTES_MAX, start).decode(errors="replace"))

    def _close_words(self) -> None:
        if self._words >= 0:
            os.close(self._words)
            self._words = -1


def _late(doing: str, *, definite: bool) -> DriverError:
    told = "its turn did not come in time" if definite else "the driver has not answered in time"
    return DriverError(
        f"{doing}: {told}",
        advice="look at nvidia-smi and the kernel's log; a lock waits while a peer works",
        definite=definite,
    )


def _loop_time(until: float) -> float:
    loop = asyncio.get_running_loop()
    return loop.time() + (until - time.monotonic())
