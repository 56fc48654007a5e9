"""What must hold of a tree whose dump was ended, whatever else fails."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Sequence

import pytest

from worker_shim.criu import giving_up, tasks
from worker_shim.process.runner import Finished


async def test_repair_mode_is_left_also_when_the_wait_before_it_is_cancelled(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    begun, left = asyncio.Event(), list[Sequence[int]]()

    async def wait_untraced(pids: Sequence[int], *, deadline_s: float) -> None:
        begun.set()
        await asyncio.Event().wait()

    async def dump() -> Finished:
        return Finished(("criu",), 0, "", "", 1)

    monkeypatch.setattr(tasks, "wait_untraced", wait_untraced)
    monkeypatch.setattr(giving_up, "leave_repair_mode", left.append)
    pids = [os.getpid()]
    run = giving_up.run_or_give_up(dump(), "no-such-mark", pids, deadline_s=5.0)
    giving = asyncio.ensure_future(run)
    await asyncio.wait_for(begun.wait(), 5.0)
    giving.cancel()
    with pytest.raises(asyncio.CancelledError):
        await giving
    assert left == [pids]
