"""Orphans that come to this process are reaped; children somebody waits for are left alone."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Iterator

import pytest

from worker_shim.process import orphans, proc
from worker_shim.process.orphans import Orphans


@pytest.fixture
def zombie() -> Iterator[int]:
    """A child that has ended; the state in which an orphan comes to its reaper."""
    child = subprocess.Popen(["true"])
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    yield child.pid
    child.wait()


def at(monkeypatch: pytest.MonkeyPatch, now: float) -> None:
    monkeypatch.setattr(orphans.time, "monotonic", lambda: now)


def test_a_zombie_is_reaped_at_the_second_sweep(
    monkeypatch: pytest.MonkeyPatch, zombie: int
) -> None:
    swept = Orphans(lambda pid: pid != zombie)
    start = time.monotonic()
    at(monkeypatch, start)
    assert swept.sweep() == 0, "its own parent may be about to collect it"
    at(monkeypatch, start + orphans.SWEEP_S / 2)
    assert swept.sweep() == 0, "not yet due"
    at(monkeypatch, start + orphans.SWEEP_S)
    assert swept.sweep() == 1
    assert proc.read_stat(zombie) is None


def test_one_whose_id_is_needed_is_reaped_at_once(zombie: int) -> None:
    living = subprocess.Popen(["sleep", "60"])
    try:
        assert Orphans(lambda _: False).reap([living.pid, zombie, os.getpid()]) == 1
        assert proc.read_stat(zombie) is None
        assert living.poll() is None
    finally:
        living.kill()
        living.wait()


def test_one_that_is_awaited_is_left_alone(monkeypatch: pytest.MonkeyPatch, zombie: int) -> None:
    swept = Orphans(lambda _: True)
    for turn in range(3):
        at(monkeypatch, time.monotonic() + turn * orphans.SWEEP_S)
        assert swept.sweep() == 0
    stat = proc.read_stat(zombie)
    assert stat is not None
    assert stat.state == "Z"
