"""What must hold of a tree whose dump was ended, whatever else fails."""

from __future__ import annotations

import asyncio
import os
import re
import subprocess
from collections.abc import Sequence
from pathlib import Path

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


CAP_SYS_RESOURCE = 24


def test_criu_is_not_what_a_kernel_in_want_of_memory_ends() -> None:
    """Where we may say so; elsewhere nothing changes and nothing is printed."""
    effective = re.search(r"CapEff:\s*(\w+)", Path("/proc/self/status").read_text())
    assert effective is not None
    may = int(effective.group(1), 16) >> CAP_SYS_RESOURCE & 1
    wanted = "-1000\n" if may else Path("/proc/self/oom_score_adj").read_text()
    line = [*giving_up.REFUSABLE, "cat", "/proc/self/oom_score_adj"]
    done = subprocess.run(line, capture_output=True, text=True, timeout=10, check=True)
    assert (done.stdout, done.stderr) == (wanted, "")


@pytest.mark.parametrize(("deadline_s", "criu_s"), [(120.0, 114.0), (24.0, 18.0), (4.0, 3.0)])
def test_ending_a_hanging_criu_is_within_the_deadline(deadline_s: float, criu_s: float) -> None:
    assert giving_up.time_for_criu(deadline_s) == criu_s
