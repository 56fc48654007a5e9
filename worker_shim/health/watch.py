"""The health of this node's GPUs: every source, and what is known by all of them."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Mapping
from dataclasses import replace

from coordinator.core.health_records import GpuTrouble
from worker_shim.health.dcgm import DcgmWatch
from worker_shim.health.nvml import NvmlWatch
from worker_shim.health.troubles import Troubles

SETTLE_S = 2.0  # for all sources to look


class HealthWatch:
    """Watches; nothing runs before `run` is awaited."""

    def __init__(
        self,
        there: Callable[[], bool],
        *,
        dcgm_url: str = "",
        env: Mapping[str, str] | None = None,
    ) -> None:
        """`there`: whether this node has a driver. `dcgm_url`: of DCGM's exporter; empty: none.

        Raises BadRequest for an address that makes no sense.
        """
        self.troubles = Troubles()
        self._sources: list[NvmlWatch | DcgmWatch] = [NvmlWatch(self.troubles, there, env=env)]
        if dcgm_url:
            self._sources.append(DcgmWatch(self.troubles, dcgm_url))

    async def run(self) -> None:
        """Watch for as long as the shim lives."""
        await asyncio.gather(*(source.run() for source in self._sources))

    async def settled(self, *, within_s: float = SETTLE_S) -> tuple[GpuTrouble, ...]:
        """All trouble as it is now, for a record; who does not answer in time is not waited for."""
        looks = [asyncio.ensure_future(source.look()) for source in self._sources]
        _, late = await asyncio.wait(looks, timeout=within_s)
        for each in late:
            each.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await each
        return tuple(replace(each, fresh=False) for each in self.troubles.now())
