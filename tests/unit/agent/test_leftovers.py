"""What a killed shim left: found by the next one, and never taken from one that lives."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from pathlib import Path

import pytest

from coordinator.core.errors import Busy
from tests.unit.agent.rig import SOCKETS, Rig
from worker_shim.agent.leftovers import Claim, NodeClaim, claim_node, sweep
from worker_shim.agent.options import ShimOptions
from worker_shim.agent.ports import PAGE
from worker_shim.agent.run import run_shim
from worker_shim.hook.page import PATH_VARIABLE
from worker_shim.images.objects.opening import StoreOptions
from worker_shim.images.staging import Staging


def sleeping(*arguments: str, **env: str) -> subprocess.Popen[bytes]:
    line = [sys.executable, "-c", "print(flush=True); import time; time.sleep(60)", *arguments]
    process = subprocess.Popen(line, env=env, stdout=subprocess.PIPE)
    assert process.stdout is not None
    process.stdout.readline()  # before that /proc may not show its arguments yet
    return process


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


async def test_a_second_shim_of_a_node_is_refused_before_it_sweeps(tmp_path: Path) -> None:
    staging = Staging(tmp_path / "staging", "n0")
    claim = await claim_node(staging)
    place = staging.create("llm", 0, "llm-a1", need_bytes=0)
    options = ShimOptions(
        node="n0",
        coordinators=["127.0.0.1:1"],
        store=StoreOptions(str(tmp_path / "store")),
        address="127.0.0.1",
        run_dir=tmp_path / "run",
        staging_dir=staging.root,
        state_dir=tmp_path / "state",
    )
    with sleeping("--images-dir", f"{place}/images") as criu:
        with pytest.raises(Busy, match=f"pid {os.getpid()}.* has node n0") as caught:
            await asyncio.wait_for(run_shim(options), 10.0)
        assert "--node" in caught.value.advice
        assert "--staging" in caught.value.advice
        assert criu.poll() is None
        criu.kill()
    assert place.exists()
    NodeClaim(Staging(staging.root, "n1")).release()  # another node of the machine is free
    claim.release()
    (await claim_node(staging, deadline_s=0.0)).release()


async def test_a_node_is_waited_for_while_its_last_shim_ends(tmp_path: Path) -> None:
    staging = Staging(tmp_path / "staging", "n0")
    claim = NodeClaim(staging)
    waiting = asyncio.ensure_future(claim_node(staging, deadline_s=10.0))
    await asyncio.sleep(0)
    assert not waiting.done()
    claim.release()
    (await waiting).release()
