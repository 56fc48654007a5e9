"""Several at once ask for one address where nobody listens: each gets a refusal, nothing else."""

from __future__ import annotations

import asyncio
from pathlib import Path

from coordinator.api.channels import Channels
from coordinator.core.errors import LinkError


async def test_several_at_once_are_refused(tmp_path: Path) -> None:
    channels, address = Channels(), f"unix:{tmp_path / 'nobody'}"

    async def ask(times: int) -> None:
        for _ in range(times):
            try:
                await channels.connected(address)
            except LinkError:
                continue
            raise AssertionError("somebody listens")

    async with asyncio.timeout(60):
        await asyncio.gather(*(ask(10) for _ in range(8)))
    await channels.close()
