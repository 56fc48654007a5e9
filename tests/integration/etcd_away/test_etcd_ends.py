"""etcd that ends: the one of `allstop up` is killed, and one whose disk is full gives up."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from coordinator.api.client import OperatorClient
from coordinator.core.errors import StoreError
from coordinator.core.model import AttemptState, Phase
from coordinator.store.etcd import EtcdKeyValue, EtcdOptions
from coordinator.store.kv import Put
from tests.integration.etcd_away.coordinators import CoordinatorProcess, coordinator
from tests.integration.etcd_away.members import Members, started
from tests.integration.etcd_away.stage import JOB, job_at, running, until
from tests.support.cluster import follow

pytestmark = [pytest.mark.etcd, pytest.mark.timeout(120)]

HELD_S = 4.0
BRIEF = {"hold_s": 60.0, "park_s": 60.0, "dump_s": HELD_S, "margin_s": 1.0, "adopt_s": 10.0}
DISK = "160m"  # etcd sets two files of 64 MB aside for its log
CHUNK = b"\0" * 1_000_000


@pytest.fixture
def short() -> Iterator[Path]:
    """A short path: a unix socket's may have 107 bytes."""
    with tempfile.TemporaryDirectory(prefix="allstop-") as name:
        yield Path(name)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of its own, which is easily filled."""
    place = tmp_path / "disk"
    place.mkdir()
    subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={DISK}", "tmpfs", str(place)], check=True, timeout=10
    )
    yield place
    subprocess.run(["umount", "--lazy", str(place)], check=True, timeout=10)


async def etcd_pid(leader: CoordinatorProcess) -> int:
    """The process id of its own etcd, from its log."""
    line = await leader.said(lambda each: "embedded etcd runs" in each, within_s=30)
    return int(json.loads(line)["pid"])


async def test_the_control_plane_ends_with_its_own_etcd_and_holds_nobody(
    tmp_path: Path, short: Path
) -> None:
    async with (
        coordinator([], data=short / "etcd", lease_s=8.0, policy=BRIEF) as first,
        job_at(tmp_path / "nodes", first.address) as nodes,
    ):
        async with OperatorClient([first.address]) as client:
            await running(client)
            for node in nodes:
                node.gates.close(Phase.DUMP)
            asking = client.checkpoint(JOB)
            action = (await anext(asking)).action
            await asyncio.gather(*(node.gates.reached(Phase.DUMP) for node in nodes))
            os.kill(await etcd_pid(first), signal.SIGKILL)
            async with asyncio.timeout(20):
                assert await first.process.wait() == StoreError.exit_code
            await first.said(lambda line: "the embedded etcd ended" in line, within_s=5)
            await asking.aclose()
        for node in nodes:
            node.gates.open()
        await until(lambda: all(n.free and n.let_go_by_itself for n in nodes), HELD_S + 10)
    async with (
        coordinator([], data=short / "etcd", lease_s=8.0, policy=BRIEF, name="again") as again,
        OperatorClient([again.address]) as client,
        job_at(tmp_path / "later", again.address),
    ):
        await again.leads()
        went = await follow(client.watch(action))
        assert went.last.state == AttemptState.ABORTED
        assert "ended while" in str(went.error)


@pytest.mark.root
async def test_a_full_disk_ends_etcd_and_costs_nobody_anything(
    tmp_path: Path, small_disk: Path
) -> None:
    with started(small_disk / "etcd") as members:
        async with (
            coordinator(members.endpoints, lease_s=30.0) as leader,
            job_at(tmp_path / "nodes", leader.address) as nodes,
            OperatorClient([leader.address]) as client,
        ):
            await running(client)
            for node in nodes:
                node.gates.close(Phase.DUMP)
            asking = asyncio.create_task(follow(client.checkpoint(JOB)))
            await asyncio.gather(*(node.gates.reached(Phase.DUMP) for node in nodes))
            filling = small_disk / "filling"
            fill(filling)
            await write_until_it_ends(members)
            for node in nodes:
                node.gates.open()
            filling.unlink()
            members.members[0].start()
            members.healthy()
            went = await asking
            assert went.error is None
            assert went.last.state == AttemptState.COMMITTED
            assert not any(node.let_go_by_itself for node in nodes)


def fill(path: Path) -> None:
    """Leave no room at all."""
    with path.open("wb", buffering=0) as file:
        while True:
            try:
                file.write(CHUNK)
            except OSError:
                return


async def write_until_it_ends(members: Members) -> None:
    """Let etcd grow until it notices."""
    process = members.members[0].process
    assert process is not None
    kv = EtcdKeyValue(EtcdOptions(tuple(members.endpoints), connect_s=1.0))
    try:
        for number in range(100):
            if process.poll() is not None:
                break
            try:
                await kv.write([], [Put(f"/filling/{number}", os.urandom(900_000))])
            except StoreError:
                await asyncio.sleep(0.1)
    finally:
        await kv.close()
    await until(lambda: process.poll() is not None, 10)
