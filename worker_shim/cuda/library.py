"""CudaDriver by the CUDA driver API, called in a helper process that lives as long as the shim."""

from __future__ import annotations

import asyncio
import json
import math
import os
import sys
import time
from collections.abc import Mapping
from typing import Any

from coordinator.core.errors import DriverError
from worker_shim.cuda import devices
from worker_shim.cuda.guard import require_alive, require_survived
from worker_shim.cuda.port import CudaState, GpuProcess
from worker_shim.cuda.results import refusal
from worker_shim.process.ending import end_helper
from worker_shim.process.port import Tree

STATES = (
    CudaState.RUNNING,
    CudaState.LOCKED,
    CudaState.CHECKPOINTED,
    CudaState.FAILED,
)  # by CUprocessState; 4 and 5 are of custom storage, which is not used
LOCK_EXTRA_S = 5.0
START_S = 60.0  # cuInit takes seconds on a machine with many GPUs
LINE_BYTES_MAX = 1 << 16
END_S = 2.0


class LibraryCuda:
    """One helper at a time, started when it is needed and ended where it does not answer in time.

    A call that is not answered may have been carried out: its error is not definite.
    """

    engine = "library"

    def __init__(
        self,
        *,
        env: Mapping[str, str] | None = None,
        device_prefix: str = devices.DEVICE_PREFIX,
    ) -> None:
        """`env` is added to the helper's environment."""
        self._env = dict(env or {})
        self._device_prefix = device_prefix
        self._helper: asyncio.subprocess.Process | None = None
        self._turn = asyncio.Lock()
        self.version = 0  # of the driver API, 12080 for 12.8; known once the helper runs

    def holders(self, tree: Tree) -> tuple[int, ...]:
        """Pids with an open NVIDIA device."""
        return devices.holders(tree, self._device_prefix)

    async def processes(self, tree: Tree, *, deadline_s: float) -> tuple[GpuProcess, ...]:
        """Those that the driver has a restore thread in."""
        until = time.monotonic() + deadline_s
        found: list[GpuProcess] = []
        for each in tree.processes:
            told = await self._ask(
                {"call": "thread", "pid": each.pid}, "looking for GPU state", until
            )
            if not told["result"] and told["value"] > 0:
                found.append(GpuProcess(each.pid, each.start_ticks))
        return tuple(found)

    async def state(self, process: GpuProcess, *, deadline_s: float) -> CudaState:
        """As the driver says; a number without a name here is OTHER."""
        doing = f"asking for the state of process {process.pid}"
        value = await self._call(process, "state", doing, deadline_s)
        return STATES[value] if 0 <= value < len(STATES) else CudaState.OTHER

    async def lock(self, process: GpuProcess, *, timeout_s: float, deadline_s: float) -> None:
        """The driver's time-out is in whole milliseconds, and 0 means for ever."""
        timeout_ms = max(1, math.ceil(timeout_s * 1000))
        within_s = min(deadline_s, timeout_s + LOCK_EXTRA_S)
        doing = f"the lock of process {process.pid}"
        await self._call(process, "lock", doing, within_s, timeout_ms=timeout_ms)

    async def checkpoint(self, process: GpuProcess, *, deadline_s: float) -> None:
        """See the port."""
        doing = f"the checkpoint of process {process.pid}"
        await self._call(process, "checkpoint", doing, deadline_s, changes=True)

    async def restore(
        self, process: GpuProcess, devices: Mapping[str, str], *, deadline_s: float
    ) -> None:
        """See the port."""
        doing = f"the restore of process {process.pid}"
        pairs = [list(pair) for pair in devices.items()]
        await self._call(process, "restore", doing, deadline_s, changes=True, devices=pairs)

    async def unlock(self, process: GpuProcess, *, deadline_s: float) -> None:
        """See the port."""
        await self._call(process, "unlock", f"the unlock of process {process.pid}", deadline_s)

    async def close(self) -> None:
        """End the helper."""
        async with self._turn:
            await self._end()

    # -- one call ------------------------------------------------------------------------------

    async def _call(
        self,
        process: GpuProcess,
        call: str,
        doing: str,
        deadline_s: float,
        *,
        changes: bool = False,
        **arguments: Any,
    ) -> int:
        require_alive(process, doing)
        request = {"call": call, "pid": process.pid, **arguments}
        told = await self._ask(request, doing, time.monotonic() + deadline_s)
        if told["result"]:
            await require_survived(process, doing, told["result"])
            raise refusal(doing, told["result"], told["words"], changed=changes)
        return int(told["value"])

    async def _ask(self, request: dict[str, Any], doing: str, until: float) -> dict[str, Any]:
        try:
            async with asyncio.timeout_at(_loop_time(until)), self._turn:
                helper = await self._started()
                assert helper.stdin is not None
                helper.stdin.write(json.dumps(request).encode() + b"\n")
                told = await self._answer(helper, doing)
        except TimeoutError:
            await self.close()
            raise DriverError(
                f"{doing}: the driver has not answered in time",
                advice="look at nvidia-smi and the kernel's log; a lock waits while a peer works",
                definite=False,
            ) from None
        if "error" in told:
            raise DriverError(f"{doing}: {told['error']}", definite=False)
        return told

    async def _started(self) -> asyncio.subprocess.Process:
        if self._helper is not None and self._helper.returncode is None:
            return self._helper
        # preloaded libraries of ours or of the job's have no place beside the driver
        env = {name: value for name, value in os.environ.items() if name != "LD_PRELOAD"}
        self._helper = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "worker_shim.cuda.helper",
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL,
            env={**env, **self._env},
            start_new_session=True,
            limit=LINE_BYTES_MAX,
        )
        told = await self._answer(self._helper, "starting the driver's helper")
        if "error" in told:
            await self._end()
            raise DriverError(
                f"the CUDA driver cannot be used: {told['error']}",
                advice="is driver 570 or newer installed, with the extra `gpu`?",
            )
        self.version = int(told["version"])
        return self._helper

    async def _answer(self, helper: asyncio.subprocess.Process, doing: str) -> dict[str, Any]:
        assert helper.stdout is not None
        line = await helper.stdout.readline()
        if not line.endswith(b"\n"):
            status = await helper.wait()
            self._helper = None
            raise DriverError(
                f"{doing}: the driver's helper ended with {status} in the middle of it",
                advice="look at the kernel's log",
                definite=False,
            )
        told: dict[str, Any] = json.loads(line)
        return told

    async def _end(self) -> None:
        helper, self._helper = self._helper, None
        if helper is not None:
            await end_helper(helper, within_s=END_S)


def _loop_time(until: float) -> float:
    loop = asyncio.get_running_loop()
    return loop.time() + (until - time.monotonic())
