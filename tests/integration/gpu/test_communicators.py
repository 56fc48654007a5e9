"""Ranks with a communicator and a device: no device drains while its communicator stands."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest
import pytest_asyncio

from lab import Lab
from tests.fakes.nccl.build import build
from tests.integration.badluck.kit import NODES
from tests.integration.gpu.kit import END_S, devices_on, environment_on
from tests.integration.nccl import kit
from tests.integration.nccl.kit import JOB, Sums
from tests.integration.runs.kit import follow

pytestmark = [
    pytest.mark.root,
    pytest.mark.criu,
    pytest.mark.etcd,
    pytest.mark.cc,
    pytest.mark.slow,
    pytest.mark.timeout(120),
]

PROGRAM = Path(__file__).with_name("programs") / "sums.py"
POLICY = ("gpu_lock_s=4s", "dump_s=10s", "margin_s=1s", "adopt_s=8s")


class SumsOnDevices(Sums):
    """Each of the ranks has a device."""

    def start(self) -> None:
        """Worker 0 on n0, worker 1 on n1."""
        self.daemons: list[subprocess.Popen[bytes]] = []
        for worker, node in enumerate(NODES):
            host = self.lab.hosts[node]
            self.daemons.append(devices_on(host))
            argv = [sys.executable, str(PROGRAM), str(worker), self.lab.hosts["n0"].address]
            env = {
                **environment_on(node, "library", self.shared / f"fault.{node}"),
                "ALLSTOP_NCCL": "rebuild",
                "ALLSTOP_NCCL_SHIM": str(self.shim),
                "FAKE_NCCL": str(self.shared / "do"),
                "SUMS_RANKS": str(kit.PROGRAM.parent),
            }
            argv.append(str(self.shared))
            self.deployment.start_worker(host, JOB, workers=2, worker=worker, argv=argv, env=env)

    async def stop(self) -> None:
        """Close the client and the daemons; what else there is ends with the lab."""
        await self.client.close()
        for daemon in self.daemons:
            await asyncio.to_thread(daemon.communicate, timeout=END_S)


@pytest_asyncio.fixture
async def sums(
    make_lab: Callable[..., Lab], criu_path: str, tmp_path: Path
) -> AsyncIterator[SumsOnDevices]:
    shim = build(tmp_path)
    made = SumsOnDevices(make_lab(NODES), tmp_path / "shared", criu_path, shim, *POLICY)
    made.start()
    try:
        await made.is_running(1)
        await made.goes_on()
        yield made
    finally:
        await made.stop()


async def test_communicators_are_down_before_a_device_is_locked(sums: SumsOnDevices) -> None:
    taken = (await follow(sums.client.checkpoint(JOB))).snapshot
    assert taken is not None
    assert [(worker.nccl, len(worker.gpu_pids)) for worker in taken.workers] == [("rebuild", 2)] * 2
    await sums.goes_on()
    restored = await follow(sums.client.restore(JOB, taken.snapshot))
    assert restored.state == "RUNNING", restored.reason
    await sums.is_running(2)
    await sums.goes_on()
