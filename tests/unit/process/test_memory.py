"""What a process has in memory and in swap, as /proc tells."""

from __future__ import annotations

import os

import pytest

from worker_shim.process import proc
from worker_shim.process.proc import Memory, memory_of

STATUS = b"""Name:\tpython 3 kB
VmPeak:\t  9000 kB
VmRSS:\t  5000 kB
RssAnon:\t  4000 kB
VmSwap:\t   200 kB
Threads:\t1
"""


def test_swap_counts_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(proc, "_read", {"/proc/7/status": STATUS}.__getitem__)
    assert memory_of(7) == Memory(5000 << 10, 4000 << 10, 200 << 10)
    assert memory_of(7).own_bytes == 4200 << 10


def test_a_process() -> None:
    memory = memory_of(os.getpid())
    assert 0 < memory.anonymous_bytes < memory.resident_bytes
    assert memory_of(2**22 + 1) == Memory()
