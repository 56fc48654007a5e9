"""What the library makes of its helper's answers."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from coordinator.core.errors import DriverError
from worker_shim.cuda.library import LibraryCuda
from worker_shim.cuda.port import GpuProcess
from worker_shim.process.port import Tree
from worker_shim.process.proc import look, read_stat

DEADLINE_S = 10.0
SUCCESS = {"result": 0, "value": 0}


class Helper:
    """Answers at once; `says` has what it answers to a call about a pid, or about any."""

    def __init__(self) -> None:
        self.first_word: dict[str, Any] = {"version": 13000, "moves": True}
        self.says: dict[tuple[str, int], dict[str, Any]] = {}
        self.asked: list[dict[str, Any]] = []
        self.before_answer: Callable[[], object] = lambda: None

    async def start(self, *, until: float) -> None:
        """It has."""

    async def ask(self, request: Any, doing: str, until: float) -> dict[str, Any]:
        self.asked.append(request(until - time.monotonic()))
        call, pid = self.asked[-1]["call"], self.asked[-1]["pid"]
        self.before_answer()
        return self.says.get((call, pid)) or self.says.get((call, 0)) or SUCCESS


@pytest.fixture
def helper() -> Helper:
    return Helper()


@pytest.fixture
def driver(helper: Helper) -> LibraryCuda:
    made = LibraryCuda(device_prefix="/nowhere/nvidia")
    made._helper = helper  # type: ignore[assignment]
    return made


@pytest.fixture
def child() -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as made:
        yield made
        made.kill()


def as_gpu_process(pid: int) -> GpuProcess:
    stat = read_stat(pid)
    assert stat is not None
    return GpuProcess(pid, stat.start_ticks)


def tree_of(*pids: int) -> Tree:
    return Tree(tuple(process for pid in pids for process in look(pid).processes[:1]))


def refuses(code: int) -> dict[str, Any]:
    return {"result": code, "words": "its words"}


async def test_without_a_map_nothing_is_asked(driver: LibraryCuda, helper: Helper) -> None:
    helper.first_word["moves"] = False
    process = as_gpu_process(os.getpid())
    with pytest.raises(DriverError, match="same GPUs only") as refused:
        await driver.restore(process, {"GPU-a": "GPU-b"}, deadline_s=DEADLINE_S)
    assert refused.value.definite
    assert not helper.asked
    await driver.restore(process, {}, deadline_s=DEADLINE_S)
    assert helper.asked[0]["devices"] == []


async def test_the_driver_gives_up_a_lock_before_we_do(driver: LibraryCuda, helper: Helper) -> None:
    await driver.lock(as_gpu_process(os.getpid()), timeout_s=60, deadline_s=5)
    assert helper.asked[0]["timeout_ms"] <= 4000


async def test_one_that_ends_in_a_call_is_named_though_the_call_succeeds(
    driver: LibraryCuda, helper: Helper, child: subprocess.Popen[bytes]
) -> None:
    process = as_gpu_process(child.pid)

    def end() -> None:
        child.kill()
        os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)

    helper.before_answer = end
    with pytest.raises(DriverError, match="has ended") as ended:
        await driver.checkpoint(process, deadline_s=DEADLINE_S)
    assert not ended.value.definite


@pytest.mark.parametrize("code", [1, 3])
async def test_processes_without_cuda(driver: LibraryCuda, helper: Helper, code: int) -> None:
    helper.says["thread", 0] = refuses(code)
    assert await driver.processes(tree_of(os.getpid()), deadline_s=DEADLINE_S) == ()


@pytest.mark.parametrize("code", [100, 304, 801, 999])
async def test_a_driver_that_cannot_say_is_not_one_without_gpu_state(
    driver: LibraryCuda, helper: Helper, child: subprocess.Popen[bytes], code: int
) -> None:
    helper.says["thread", 0] = refuses(code)
    tree = tree_of(os.getpid(), child.pid)
    with pytest.raises(DriverError, match=r"GPU state of process \d+: .* \(its words\)") as told:
        await driver.processes(tree, deadline_s=DEADLINE_S)
    assert told.value.details == (f"result {code}",)
    helper.says["thread", child.pid] = {"result": 0, "value": 7}
    found = await driver.processes(tree, deadline_s=DEADLINE_S)
    assert [each.pid for each in found] == [child.pid], "a launcher says what it likes"


async def test_a_holder_of_a_device_must_be_known(
    helper: Helper, child: subprocess.Popen[bytes]
) -> None:
    driver = LibraryCuda(device_prefix="pipe:")  # the child's standard input
    driver._helper = helper  # type: ignore[assignment]
    helper.says["thread", child.pid] = refuses(304)
    helper.says["thread", 0] = {"result": 0, "value": 7}
    with pytest.raises(DriverError, match="OPERATING_SYSTEM"):
        await driver.processes(tree_of(os.getpid(), child.pid), deadline_s=DEADLINE_S)
