"""CudaDriver by the CUDA driver API, called in a helper process that lives as long as the shim."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from worker_shim.cuda import devices
from worker_shim.cuda.asking import HelperProcess
from worker_shim.cuda.guard import Unclear, require_alive, require_survived
from worker_shim.cuda.port import CudaState, GpuProcess
from worker_shim.cuda.results import WITHOUT_CUDA, no_map, refusal
from worker_shim.process.port import Tree

STATES = (
    CudaState.RUNNING,
    CudaState.LOCKED,
    CudaState.CHECKPOINTED,
    CudaState.FAILED,
)  # by CUprocessState; 4 and 5 are of custom storage, which is not used
LOCK_EXTRA_S = 5.0
ANSWER_S = 1.0  # of a lock's time: the driver gives up by itself, before the helper is ended

Request = Callable[[float], dict[str, Any]]  # made when its turn has come, of the seconds left


class LibraryCuda:
    """Asks one helper, request by request.

    A call that is not answered may have been carried out: its error is not definite.
    """

    engine = "library"
    trouble = ""

    def __init__(
        self,
        *,
        env: Mapping[str, str] | None = None,
        device_prefix: str = devices.DEVICE_PREFIX,
    ) -> None:
        """`env` is added to the helper's environment."""
        self._helper = HelperProcess("worker_shim.cuda.helper", env or {})
        self._device_prefix = device_prefix

    @property
    def version(self) -> int:
        """Of the driver API, 12080 for 12.8; 0: not known yet."""
        return int(self._helper.first_word.get("version", 0))

    @property
    def moves(self) -> bool:
        """As the helper said of driver and bindings."""
        return bool(self._helper.first_word.get("moves", True))

    async def open(self, *, deadline_s: float) -> None:
        """Start the helper."""
        await self._helper.start(until=time.monotonic() + deadline_s)

    def holders(self, tree: Tree) -> tuple[int, ...]:
        """Pids with an open NVIDIA device."""
        return devices.holders(tree, self._device_prefix)

    async def processes(self, tree: Tree, *, deadline_s: float) -> tuple[GpuProcess, ...]:
        """Those that the driver has a restore thread in."""
        until = time.monotonic() + deadline_s
        found: list[GpuProcess] = []
        unclear = Unclear(self._device_prefix)
        for each in tree.processes:
            process = GpuProcess(each.pid, each.start_ticks)
            doing = f"looking for GPU state of process {each.pid}"
            told = await self._helper.ask(partial(_thread, each.pid), doing, until)
            if not told["result"]:
                found += [process] if told["value"] > 0 else []
            elif told["result"] not in WITHOUT_CUDA:
                unclear.add(process, refusal(doing, told["result"], told["words"], changed=False))
        unclear.require_some(found)
        return tuple(found)

    async def state(self, process: GpuProcess, *, deadline_s: float) -> CudaState:
        """As the driver says; a number without a name here is OTHER."""
        doing = f"asking for the state of process {process.pid}"
        value = await self._call(process, "state", doing, deadline_s)
        return STATES[value] if 0 <= value < len(STATES) else CudaState.OTHER

    async def lock(self, process: GpuProcess, *, timeout_s: float, deadline_s: float) -> None:
        """The driver's time-out is in whole milliseconds, and 0 means for ever."""
        within_s = min(deadline_s, timeout_s + LOCK_EXTRA_S)

        def timeout_ms(left_s: float) -> dict[str, Any]:
            wait_s = min(timeout_s, left_s - min(ANSWER_S, left_s / 2))
            return {"timeout_ms": max(1, math.ceil(wait_s * 1000))}

        doing = f"the lock of process {process.pid}"
        await self._call(process, "lock", doing, within_s, arguments=timeout_ms)

    async def checkpoint(self, process: GpuProcess, *, deadline_s: float) -> None:
        """See the port."""
        doing = f"the checkpoint of process {process.pid}"
        await self._call(process, "checkpoint", doing, deadline_s, changes=True)

    async def restore(
        self, process: GpuProcess, devices: Mapping[str, str], *, deadline_s: float
    ) -> None:
        """See the port."""
        doing = f"the restore of process {process.pid}"
        until = time.monotonic() + deadline_s
        if devices:
            await self._helper.start(until=until)
            if not self.moves:
                raise no_map(doing)
        pairs = {"devices": [list(pair) for pair in devices.items()]}
        left_s = until - time.monotonic()
        await self._call(process, "restore", doing, left_s, changes=True, arguments=lambda _: pairs)

    async def unlock(self, process: GpuProcess, *, deadline_s: float) -> None:
        """See the port."""
        await self._call(process, "unlock", f"the unlock of process {process.pid}", deadline_s)

    async def close(self) -> None:
        """End the helper."""
        await self._helper.close()

    async def _call(
        self,
        process: GpuProcess,
        call: str,
        doing: str,
        deadline_s: float,
        *,
        changes: bool = False,
        arguments: Request = lambda _: {},
    ) -> int:
        def request(left_s: float) -> dict[str, Any]:
            require_alive(process, doing)
            return {"call": call, "pid": process.pid, **arguments(left_s)}

        require_alive(process, doing)
        told = await self._helper.ask(request, doing, time.monotonic() + deadline_s)
        if told["result"]:
            await require_survived(process, doing, told["result"])
            raise refusal(doing, told["result"], told["words"], changed=changes)
        require_alive(process, doing, after=True)
        return int(told["value"])


def _thread(pid: int, left_s: float) -> dict[str, Any]:
    return {"call": "thread", "pid": pid}
