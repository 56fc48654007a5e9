"""A driver that was not ready when the shim started, as after a boot: it is tried until it is."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any, cast

import structlog

from coordinator.core.errors import AllstopError
from worker_shim.cuda.port import CudaDriver

log = structlog.get_logger(__name__)

AGAIN_S = 30.0


class _Late:
    """All that `CudaDriver` has is that of the present one."""

    def __init__(
        self, first: CudaDriver, opening: Callable[[], Awaitable[CudaDriver]], again_s: float
    ) -> None:
        self._present, self._opening, self._again_s = first, opening, again_s
        self._trying = asyncio.create_task(self._try())

    def __getattr__(self, name: str) -> Any:
        return getattr(self._present, name)

    async def close(self) -> None:
        self._trying.cancel()
        with suppress(asyncio.CancelledError):
            await self._trying
        await self._present.close()

    async def _try(self) -> None:
        while not self._present.engine:
            await asyncio.sleep(self._again_s)
            try:
                self._present = await self._opening()
            except AllstopError as error:
                log.warning("the CUDA driver cannot be tried", why=str(error))
        log.info("GPU state can be saved from now on", engine=self._present.engine)


def late(
    first: CudaDriver,
    opening: Callable[[], Awaitable[CudaDriver]],
    *,
    again_s: float = AGAIN_S,
) -> CudaDriver:
    """`first` until `opening` gives one with an engine, and then that; `close` ends the trying."""
    return cast(CudaDriver, _Late(first, opening, again_s))
