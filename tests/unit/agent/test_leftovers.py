"""What a killed shim left: found by the next one, and never taken from one that lives."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from coordinator.core.errors import Busy
from tests.unit.agent.rig import SOCKETS, Rig
from worker_shim.agent.leftovers import Claim, sweep
from worker_shim.agent.ports import PAGE
from worker_shim.hook.page import PATH_VARIABLE


def sleeping(*arguments: str, **env: str) -> subprocess.Popen[bytes]:
    line = [sys.executable, "-c", "import time; time.sleep(60)", *arguments]
    return subprocess.Popen(line, env=env)


def worker_of(directory: Path) -> subprocess.Popen[bytes]:
    directory.mkdir(parents=True)
    return sleeping(**{PATH_VARIABLE: str(directory / PAGE)})


async def test_a_dead_shims_worker_lock_dump_and_staging_go(tmp_path: Path) -> None:
    rig = Rig(tmp_path)
    directory = rig.drivers.run_root / "llm" / "0"
    place = rig.staging.create("llm", 0, "llm-a1", need_bytes=0)
    await rig.network.lock("llm/0", SOCKETS, deadline_s=1.0)
    with worker_of(directory) as worker, sleeping("--images-dir", f"{place}/images") as criu:
        swept = await sweep(rig.drivers)
        assert (worker.wait(10), criu.wait(10)) == (-9, -9)
    assert not await rig.network.locked("llm/0")
    assert not place.exists()
    assert len(swept) == 4, swept
    assert await sweep(rig.drivers) == ()


async def test_a_living_shims_worker_stays(tmp_path: Path) -> None:
    rig = Rig(tmp_path)
    directory = rig.drivers.run_root / "llm" / "0"
    with worker_of(directory) as worker:
        claim = Claim(directory)
        await rig.network.lock("llm/0", SOCKETS, deadline_s=1.0)
        assert await sweep(rig.drivers) == ()
        assert worker.poll() is None
        assert await rig.network.locked("llm/0")
        with pytest.raises(Busy, match="another shim on this machine"):
            Claim(directory)
        claim.release()
        assert len(await sweep(rig.drivers)) == 2
        assert worker.wait(10) == -9
