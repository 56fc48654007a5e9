"""NVML as a source of trouble: a helper that watches, watched itself.

It is ended when it says nothing for too long, and started again, later each time. Where there is no
driver nobody watches.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import Callable, Mapping
from typing import Any

import structlog

from worker_shim.health.troubles import Troubles, counters_of
from worker_shim.process.ending import end_helper

log = structlog.get_logger(__name__)

WATCHER = "worker_shim.health.watcher"
SOURCE = "nvml"
POLL_S = 5.0  # between two looks at the counters
SILENT_S = 30.0  # then the helper hangs, in the driver most likely
AGAIN_S = 1.0
AGAIN_S_MAX = 60.0
END_S = 5.0
LINE_BYTES_MAX = 1 << 20


class NvmlWatch:
    """The helper, from its start to its end."""

    def __init__(
        self,
        troubles: Troubles,
        there: Callable[[], bool],
        *,
        env: Mapping[str, str] | None = None,
        poll_s: float = POLL_S,
        silent_s: float = SILENT_S,
        again_s: float = AGAIN_S,
    ) -> None:
        """`there`: whether this node has a driver. `env`: of the helper; None inherits."""
        self._troubles = troubles
        self._there = there
        self._env = env
        self._poll_s, self._silent_s, self._again_s = poll_s, silent_s, again_s
        self._helper: asyncio.subprocess.Process | None = None
        self._asked: list[asyncio.Future[None]] = []
        self._looked = asyncio.Event()
        self.why = ""  # nobody watches; empty: somebody does, or there is nothing to watch

    async def run(self) -> None:
        """Watch for as long as the shim lives."""
        wait_s = self._again_s
        while True:
            if self._there():
                self._looked.clear()
                why = await self._watch()
                if why and why != self.why:
                    log.warning("GPUs are not watched", why=why)
                self.why = why
                wait_s = self._again_s if self._looked.is_set() else min(AGAIN_S_MAX, 2 * wait_s)
                await asyncio.sleep(wait_s)
            else:
                await asyncio.sleep(AGAIN_S_MAX)

    async def look(self) -> None:
        """Have the counters read now; returns when that is done, or where nobody watches."""
        helper = self._helper
        if helper is None or helper.stdin is None or helper.returncode is not None:
            return
        asked: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._asked.append(asked)
        helper.stdin.write(b"look\n")
        await asked

    # -- pieces ----------------------------------------------------------------------------------

    async def _watch(self) -> str:
        """Start the helper and read what it says to its end; returns why that came."""
        env = dict(os.environ if self._env is None else self._env)
        env.pop("LD_PRELOAD", None)  # of ours or of the job's: no place beside the driver
        argv = [sys.executable, "-m", WATCHER, str(self._poll_s)]
        pipe, null = asyncio.subprocess.PIPE, asyncio.subprocess.DEVNULL
        try:
            self._helper = await asyncio.create_subprocess_exec(
                *argv, stdin=pipe, stdout=pipe, stderr=null, env=env, start_new_session=True,
                limit=LINE_BYTES_MAX,
            )  # fmt: skip
        except OSError as error:
            return f"NVML's watcher cannot be started: {error}"
        try:
            return await self._read(self._helper)
        finally:
            await end_helper(self._helper, within_s=END_S)
            self._helper = None
            self._answer()

    async def _read(self, helper: asyncio.subprocess.Process) -> str:
        assert helper.stdout is not None
        why = "NVML's watcher has ended"
        while True:
            try:
                async with asyncio.timeout(self._silent_s):
                    line = await helper.stdout.readline()
            except TimeoutError:
                return f"NVML has not answered for {self._silent_s:g} s, and its watcher was ended"
            except ValueError:
                return "NVML's watcher printed a line without end"
            if not line:
                return why
            try:
                told = json.loads(line)
                why = str(told["why"]) if told["event"] == "trouble" else why
                self._take(told)
            except (KeyError, TypeError, ValueError) as error:
                return f"NVML's watcher printed what cannot be read: {error!r}"

    def _take(self, told: Mapping[str, Any]) -> None:
        if told["event"] == "xid":
            uuid, index, code = str(told["uuid"]), int(told["index"]), int(told["code"])
            log.warning("Xid", gpu=uuid, index=index, xid=code)
            self._troubles.xid(uuid, index, code, SOURCE)
        elif told["event"] == "looked":
            for each in told["gpus"]:
                self._troubles.looked(counters_of(each), SOURCE)
            self.why = ""
            self._looked.set()
            if told["asked"]:
                self._answer()

    def _answer(self) -> None:
        asked, self._asked = self._asked, []
        for each in asked:
            if not each.done():
                each.set_result(None)
