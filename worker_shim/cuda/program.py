"""CudaDriver by NVIDIA's `cuda-checkpoint` program, one call of it for each action.

It prints no version: what it can do is read from its help text, as CRIU does. Each call attaches to
the driver anew, which takes seconds on a machine with many GPUs; `library` does not.
"""

from __future__ import annotations

import math
import os
import re
import time
from collections.abc import Mapping
from pathlib import Path

from coordinator.core.errors import DriverError
from worker_shim.cuda import devices
from worker_shim.cuda.guard import Unclear, require_alive, require_survived
from worker_shim.cuda.port import CudaState, GpuProcess
from worker_shim.cuda.results import (
    WITHOUT_CUDA,
    no_map,
    of_exit_status,
    refusal,
)
from worker_shim.process.port import Tree
from worker_shim.process.runner import Commands, Finished

NEEDED = ("--action", "--get-state", "--get-restore-tid", "--timeout")
MAP = "--device-map"
LOCK_EXTRA_S = 10.0  # beyond the lock's own time-out: attaching to the driver takes seconds
ANSWER_S = 2.0  # of a lock's time: the driver gives up by itself, before the program is killed
_QUOTED = re.compile(r'"([^"]*)"')
_NO_CUDA = ("none", "-1", "0", "")
_NO_THREAD = "Could not find restore thread"


class ProgramCuda:
    """Holds nothing between calls but what the program can do."""

    engine = "program"
    trouble = ""

    def __init__(
        self, commands: Commands, program: str | Path, *, device_prefix: str = devices.DEVICE_PREFIX
    ) -> None:
        """`program` is looked at on the first call."""
        self._commands = commands
        self._program = str(program)
        self._device_prefix = device_prefix
        self._flags: frozenset[str] | None = None

    @property
    def moves(self) -> bool:
        """By its help text."""
        return self._flags is None or MAP in self._flags

    async def open(self, *, deadline_s: float) -> None:
        """Read its help text."""
        await self.flags(deadline_s=deadline_s)

    def holders(self, tree: Tree) -> tuple[int, ...]:
        """Pids with an open NVIDIA device."""
        return devices.holders(tree, self._device_prefix)

    async def flags(self, *, deadline_s: float) -> frozenset[str]:
        """Every long option in its help text; raises DriverError for one that is too old."""
        if self._flags is None:
            told = await self._run("--help", until=time.monotonic() + deadline_s)
            flags = frozenset(re.findall(r"--[a-z][a-z-]+", told.stdout + told.stderr))
            missing = [flag for flag in NEEDED if flag not in flags]
            if missing:
                raise DriverError(
                    f"{self._program} does not know {', '.join(missing)}",
                    advice="use the one that comes with driver 570 or newer",
                    details=tuple((told.stdout + told.stderr).splitlines()[:20]),
                )
            self._flags = flags
        return self._flags

    async def processes(self, tree: Tree, *, deadline_s: float) -> tuple[GpuProcess, ...]:
        """Those that the driver has a restore thread in.

        The state is not asked for that: it also answers for a parent that only launched a job.
        """
        until = time.monotonic() + deadline_s
        await self.flags(deadline_s=deadline_s)
        found: list[GpuProcess] = []
        unclear = Unclear(self._device_prefix)
        for each in tree.processes:
            process = GpuProcess(each.pid, each.start_ticks)
            told = await self._run("--get-restore-tid", "--pid", str(each.pid), until=until)
            said = told.stdout.split()
            code, words = _result(told)
            if told.exit_code == 0:
                found += [process] if said and said[-1].lower() not in _NO_CUDA else []
            elif code not in WITHOUT_CUDA or _NO_THREAD not in told.stdout + told.stderr:
                doing = f"looking for GPU state of process {each.pid}"
                unclear.add(process, refusal(doing, code, words, changed=False))
        unclear.require_some(found)
        return tuple(found)

    async def state(self, process: GpuProcess, *, deadline_s: float) -> CudaState:
        """As the program prints it."""
        doing = f"asking for the state of process {process.pid}"
        told = await self._act(process, doing, time.monotonic() + deadline_s, "--get-state")
        if told.exit_code != 0:
            raise refusal(doing, *_result(told), changed=False)
        word = told.stdout.strip().lower()
        return CudaState(word) if word in set(CudaState) else CudaState.OTHER

    async def lock(self, process: GpuProcess, *, timeout_s: float, deadline_s: float) -> None:
        """The program's time-out is in whole milliseconds, and 0 means for ever."""
        until = time.monotonic() + min(deadline_s, timeout_s + LOCK_EXTRA_S)
        await self.flags(deadline_s=deadline_s)
        left_s = until - time.monotonic()
        wait_s = min(timeout_s, left_s - min(ANSWER_S, left_s / 2))
        timeout_ms = max(1, math.ceil(wait_s * 1000))
        await self._change(process, "lock", until, "--timeout", str(timeout_ms))

    async def checkpoint(self, process: GpuProcess, *, deadline_s: float) -> None:
        """See the port."""
        await self._change(process, "checkpoint", time.monotonic() + deadline_s, changes=True)

    async def restore(
        self, process: GpuProcess, devices: Mapping[str, str], *, deadline_s: float
    ) -> None:
        """See the port."""
        until = time.monotonic() + deadline_s
        if devices and MAP not in await self.flags(deadline_s=deadline_s):
            raise no_map(f"the restore of process {process.pid}")
        pairs = ",".join(f"{old}={new}" for old, new in devices.items())
        given = (MAP, pairs) if pairs else ()
        await self._change(process, "restore", until, *given, changes=True)

    async def unlock(self, process: GpuProcess, *, deadline_s: float) -> None:
        """See the port."""
        await self._change(process, "unlock", time.monotonic() + deadline_s)

    async def close(self) -> None:
        """Nothing runs that does not end by its own deadline."""

    async def _change(
        self,
        process: GpuProcess,
        action: str,
        until: float,
        *arguments: str,
        changes: bool = False,
    ) -> None:
        doing = f"the {action} of process {process.pid}"
        told = await self._act(process, doing, until, "--action", action, *arguments)
        if told.exit_code == 0:
            require_alive(process, doing, after=True)
            return
        code, words = _result(told)
        await require_survived(process, doing, code)
        if told.exit_code < 0:
            told.require(doing, definite=False)
        raise refusal(doing, code, words, changed=changes)

    async def _act(
        self, process: GpuProcess, doing: str, until: float, *arguments: str
    ) -> Finished:
        await self.flags(deadline_s=until - time.monotonic())
        require_alive(process, doing)
        return await self._run(*arguments, "--pid", str(process.pid), until=until)

    async def _run(self, *arguments: str, until: float) -> Finished:
        # preloaded libraries of ours or of the job's have no place in a program that attaches
        env = {name: value for name, value in os.environ.items() if name != "LD_PRELOAD"}
        left_s = max(0.1, until - time.monotonic())
        return await self._commands.run((self._program, *arguments), deadline_s=left_s, env=env)


def _result(told: Finished) -> tuple[int, str]:
    """The driver's result behind an exit status, and the words that came with it."""
    said = _QUOTED.search(told.stderr + told.stdout)
    words = said.group(1) if said else (told.stderr or told.stdout).strip()[-200:]
    return of_exit_status(told.exit_code, words), words
