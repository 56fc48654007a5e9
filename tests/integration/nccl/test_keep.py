"""Communicators over TCP alone stay as they are: through a checkpoint, and onto another node.

Real shims, coordinator, CRIU and TCP; NCCL is a stand-in, and the driver a file of its version.
"""

from __future__ import annotations

import shutil
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest
import pytest_asyncio

from coordinator.core.errors import AllstopError
from lab import Lab
from tests.integration.nccl.kit import JOB, Sums, until
from tests.integration.runs.kit import follow

pytestmark = [
    pytest.mark.root, pytest.mark.criu, pytest.mark.etcd, pytest.mark.cc, pytest.mark.slow,
]  # fmt: skip

HOSTS = ("n0", "n1", "n2")
LOAD = """
set -e
mountpoint -q /proc/driver || mount -t tmpfs none /proc/driver
mkdir -p /proc/driver/nvidia
echo "NVRM version: NVIDIA UNIX x86_64 Kernel Module  $0  Mon Nov  2 10:00:00 UTC 2026" \
    >/proc/driver/nvidia/version
"""


def load_driver(lab: Lab, version: str) -> None:
    """Every node has loaded this driver, as far as /proc says."""
    for name in HOSTS:
        lab.hosts[name].run(["sh", "-c", LOAD, version])


@pytest_asyncio.fixture
async def sums(
    make_lab: Callable[..., Lab], criu_path: str, nccl_shim: Path, tmp_path: Path
) -> AsyncIterator[Sums]:
    lab = make_lab(list(HOSTS))
    load_driver(lab, "610.57.04")
    made = Sums(lab, tmp_path / "shared", criu_path, nccl_shim)
    # Under the name of NCCL itself, as the checks look for it; nothing of its checkpoint shim.
    bare = shutil.copy(nccl_shim, made.shared / "libnccl.so.2")
    made.start(ALLSTOP_NCCL="keep", LD_PRELOAD=str(bare), ALLSTOP_GPU_ENGINE="none")
    await made.is_running(1)
    await made.goes_on()
    yield made
    await made.client.close()


@pytest.mark.timeout(240)
async def test_they_are_kept_in_place_and_on_another_node(sums: Sums) -> None:
    await until("the finding", lambda: _live(sums))
    taken = (await follow(sums.client.checkpoint(JOB))).snapshot
    assert taken is not None
    assert [worker.nccl for worker in taken.workers] == ["keep", "keep"]
    assert all(worker.connections for worker in taken.workers), "they are in the images, open"
    await sums.goes_on()

    sums.lab.hosts["n0"].power_off()  # rank 0 is there, to which all are connected
    await sums.is_lost("n0")
    restored = await follow(sums.client.restore(JOB, taken.snapshot))
    assert restored.state == "RUNNING", restored.reason
    await sums.is_running(2)
    await sums.goes_on()
    assert (await follow(sums.client.checkpoint(JOB))).snapshot is not None


@pytest.mark.timeout(240)
async def test_an_older_driver_is_refused(sums: Sums) -> None:
    load_driver(sums.lab, "580.95.05")
    with pytest.raises(AllstopError, match=r"this is 580\.95\.0?5"):
        await follow(sums.client.checkpoint(JOB))
    await sums.goes_on()


async def _live(sums: Sums) -> bool:
    return any("live NCCL communicators" in text for text in await sums.findings())
