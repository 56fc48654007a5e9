"""One contract for the process driver: the real one with real processes, and its fake."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from coordinator.core.errors import DriverError
from worker_shim.process.driver import LinuxProcessDriver
from worker_shim.process.fake import FakeProcessDriver
from worker_shim.process.port import LaunchSpec, ProcessDriver

DEADLINE_S = 10.0


@pytest.fixture(params=["fake", pytest.param("linux", marks=pytest.mark.root)])
async def driver(request: pytest.FixtureRequest) -> AsyncIterator[ProcessDriver]:
    made: FakeProcessDriver | LinuxProcessDriver
    made = FakeProcessDriver() if request.param == "fake" else LinuxProcessDriver()
    if isinstance(made, FakeProcessDriver):
        made.missing.add("no-such-program")
    yield made
    roots = made.trees if isinstance(made, FakeProcessDriver) else made.known_roots()
    for root in list(roots):
        await made.kill(root, deadline_s=DEADLINE_S)


@pytest.fixture
async def root(driver: ProcessDriver, tmp_path: Path) -> int:
    return await driver.launch(spec(tmp_path, "sleep", "300"), deadline_s=DEADLINE_S)


def spec(tmp_path: Path, *argv: str) -> LaunchSpec:
    return LaunchSpec(argv=argv, env=dict(os.environ), cwd=tmp_path, log=tmp_path / "log")


async def test_a_launched_worker_is_seen(driver: ProcessDriver, root: int) -> None:
    (process,) = driver.look(root).processes
    assert process.pid == root >= 1000
    assert process.argv == ("sleep", "300")
    assert process.state in "SRD"
    assert process.threads == (root,)


async def test_what_is_not_installed_is_named(driver: ProcessDriver, tmp_path: Path) -> None:
    with pytest.raises(DriverError, match="program no-such-program: No such file"):
        await driver.launch(spec(tmp_path, "no-such-program"), deadline_s=DEADLINE_S)


async def test_stopped_and_running_again(driver: ProcessDriver, root: int) -> None:
    tree = await driver.stop(root, deadline_s=DEADLINE_S)
    assert [process.state for process in tree.processes] == ["T"]
    assert driver.look(root) == tree
    assert await driver.stop(root, deadline_s=DEADLINE_S) == tree, "stopping twice is stopping"
    await driver.go_on(root)
    for _ in range(1000):
        if driver.look(root).processes[0].state == "S":
            return
        await asyncio.sleep(0.001)
    raise AssertionError("it does not run again")


async def test_everyone_who_waits_learns_the_end(driver: ProcessDriver, root: int) -> None:
    waiting = asyncio.gather(driver.wait(root), driver.wait(root))
    await asyncio.sleep(0)
    await driver.kill(root, deadline_s=DEADLINE_S)
    assert await waiting == [-signal.SIGKILL] * 2
    assert driver.look(root).processes == ()
    await driver.kill(root, deadline_s=DEADLINE_S)
    await driver.go_on(root)
    with pytest.raises(DriverError, match=f"pid {root}.* is gone"):
        await driver.stop(root, deadline_s=DEADLINE_S)


async def test_a_stranger_cannot_be_waited_for(driver: ProcessDriver) -> None:
    with pytest.raises(DriverError, match="is not a child of this shim"):
        await driver.wait(999_999_999)
