"""Coordinators are killed after each step of a deletion, and nodes in the middle of one."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing
from pathlib import Path

import pytest

from coordinator.api.client import OperatorClient
from coordinator.core.errors import NotFound, Refused
from coordinator.core.kept import Retention
from coordinator.core.model import Snapshot
from coordinator.store.kv import Range
from tests.conftest import EtcdServer
from tests.integration.keeping.kit import Cluster, cluster
from tests.integration.replicas.kit import WAIT_S, cli, eventually, until
from tests.support.cluster import follow

pytestmark = [pytest.mark.etcd, pytest.mark.slow, pytest.mark.timeout(240)]


@pytest.fixture(scope="module")
async def running(
    etcd_server: EtcdServer, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Cluster]:
    folder: Path = tmp_path_factory.mktemp("keeping")
    async with cluster(etcd_server.endpoint, "/keeping", folder) as made:
        yield made


def client(running: Cluster) -> OperatorClient:
    return OperatorClient(running.addresses, patience_s=WAIT_S)


async def checkpoint(running: Cluster) -> str:
    async with client(running) as asking, aclosing(asking.checkpoint("llm")) as events:
        async for event in events:
            name = event.action
    return name


async def snapshots(running: Cluster) -> dict[str, Snapshot]:
    async def ask() -> dict[str, Snapshot]:
        async with client(running) as asking:
            found = await asking.snapshots("llm")
        return {each.snapshot: each for each in found.snapshots}

    return await eventually(ask)


async def gone(running: Cluster, name: str) -> None:
    async with asyncio.timeout(WAIT_S):
        while name in await snapshots(running):  # noqa: ASYNC110 - nobody tells
            await asyncio.sleep(0.1)


async def whole(running: Cluster) -> None:
    """Whatever can be restored is there to its last byte; of the rest nothing is."""
    kept = await snapshots(running)
    assert running.images() == set(kept)
    for shim in running.shims:
        for images in shim.kept:
            known = kept.get(images.place.split("/")[1])
            if known is None or known.damaged:
                continue
            found = await shim.store.verify(
                images.place, images.digest, progress=lambda a, b: None, deadline_s=WAIT_S
            )
            assert found == ()


async def now(running: Cluster) -> int:
    """Etcd's revision."""
    return (await running.kv.read(Range("/", keys_only=True))).revision


async def seen(running: Cluster, part: str, since: int, *, put: bool) -> None:
    """Wait until etcd tells of a put (or a removal) of a key with this part, after a revision."""
    prefix = f"{running.coordinators.prefix}/jobs/"
    async with asyncio.timeout(WAIT_S), aclosing(running.kv.watch(prefix, since + 1)) as changes:
        async for change in changes:
            if part in getattr(change, "key", "") and (change.item is not None) == put:
                return


async def test_a_coordinator_is_killed_after_each_step(running: Cluster) -> None:
    gates = running.store.gates
    first, second = [await checkpoint(running) for _ in range(2)]
    began = await now(running)
    gates.closed.add("list")

    async def ask() -> None:
        async with client(running) as asking, aclosing(asking.delete("llm", [first])) as events:
            async for _ in events:
                pass

    asking = asyncio.create_task(ask())
    await seen(running, f"/snapshots/{first}", began, put=True)
    await running.kill_leader()  # MARKING
    asking.cancel()
    await gates.stopped("list")
    async with client(running) as again:
        refused = (await follow(again.restore("llm", first))).error
        assert isinstance(refused, Refused)
        assert "being deleted" in refused.what
    await running.kill_leader()  # LISTING
    gates.open()
    gates.closed.add("collect")
    await gates.stopped("collect")
    assert first in running.images()
    await running.kill_leader()  # COLLECTING, before anything is gone
    gates.open()
    gates.closed.add("collected")
    await gates.stopped("collected")
    assert first not in running.images()
    assert (await snapshots(running))[first].deleting
    await running.kill_leader()  # COLLECTING, all is gone and nobody was told
    gates.open()
    await seen(running, f"{first}/workers/", began, put=False)
    await running.kill_leader()  # FORGETTING
    await gone(running, first)
    assert second in await snapshots(running)
    await whole(running)
    async with client(running) as again:
        refused = (await follow(again.restore("llm", first))).error
        assert isinstance(refused, Refused)
        assert "was deleted" in refused.what
        assert (await again.show(first)).attempt is not None  # what became of it is still known
        with pytest.raises(NotFound):
            await again.pin(first)


async def test_a_node_is_lost_while_it_collects(running: Cluster) -> None:
    gates = running.store.gates
    name = await checkpoint(running)
    await checkpoint(running)
    gates.closed.add("collect")
    async with client(running) as asking:
        deleting = asyncio.create_task(follow(asking.delete("llm", [name])))
        await gates.stopped("collect")
        busy = next(shim for shim in running.shims if shim.tasks.running)
        assert busy.node == "node-2"  # the spare
        await busy.leave(goodbye=False)
        gates.open()
        assert (await deleting).error is None
    await whole(running)


async def test_a_retention_is_applied_after_each_checkpoint(running: Cluster) -> None:
    async with client(running) as asking:
        pinned = await checkpoint(running)
        await asking.pin(pinned, "the paper")
        await asking.set_retention("llm", Retention(keep_last=1))
        newest = await checkpoint(running)
        async with asyncio.timeout(WAIT_S):
            while set(await snapshots(running)) != {pinned, newest}:  # noqa: ASYNC110
                await asyncio.sleep(0.1)
        await whole(running)
        await running.kill_leader()
        assert (await asking.retention("llm")).retention == Retention(keep_last=1)
        await asking.set_retention("llm", None)


async def test_what_is_broken_is_found_and_no_default_any_more(running: Cluster) -> None:
    good = await checkpoint(running)
    bad = await checkpoint(running)
    code, whole_told, _ = await cli("--coordinator", running.addresses[0], "verify", good)
    assert (code, whole_told[0]["broken"]) == (0, [])
    pack = next((running.store.root / "llm" / bad / "packs").glob("1.*"))
    pack.chmod(0o600)
    data = bytearray(pack.read_bytes())
    data[0] ^= 1
    pack.write_bytes(data)
    code, told, said = await cli("--coordinator", running.addresses[0], "verify", bad)
    assert (code, told[0]["broken"][0]["worker"]) == (17, 1), said
    assert told[0]["broken"][0]["file"] == "pages-1.img"
    assert (await snapshots(running))[bad].damaged
    async with client(running) as asking:
        planned = await asking.plan("llm")
        assert planned.plan is not None
        assert planned.plan.snapshot == good
        assert any(bad in note and "damaged" in note for note in planned.plan.notes)
        named = await asking.plan("llm", bad)
        assert named.plan is not None
        assert any("the snapshot is damaged" in note for note in named.plan.notes)


async def test_an_unreachable_store_leaves_it_marked_until_it_is_back(running: Cluster) -> None:
    name = await checkpoint(running)
    await checkpoint(running)
    root = running.store.root
    away = root.with_name("away")
    root.rename(away)
    root.write_text("not a directory")
    try:
        code, told, said = await cli("--coordinator", running.addresses[0], "delete", "llm", name)
        assert (code, told["state"]) == (0, "WAITING"), said
        async with client(running) as asking:
            listed = await asking.snapshots("llm")
            assert any(name in problem for problem in listed.problems)
            (job,) = await asking.jobs()
            assert any(name in problem for problem in job.problems)
    finally:
        root.unlink()
        away.rename(root)
    await gone(running, name)
    await whole(running)


async def test_garbage_of_one_job_is_collected_and_no_other_job_is_touched(
    running: Cluster,
) -> None:
    other = running.store.root / "other" / "other-1" / "0"
    other.mkdir(parents=True)
    (other / "pages-1.img").write_bytes(b"theirs")
    before = running.images()
    code, told, said = await cli("--coordinator", running.addresses[0], "gc", "llm", "--dry-run")
    assert (code, told["llm"]["objects"]) == (0, 0), said
    stranger = running.store.root / "llm" / "llm-of-another-cluster" / "0"
    stranger.mkdir(parents=True)
    (stranger / "pages-1.img").write_bytes(b"somebody's")
    code, told, _ = await cli("--coordinator", running.addresses[0], "gc", "llm")
    assert told["llm"]["unknown"] == ["llm-of-another-cluster"]
    assert stranger.exists()
    code, told, _ = await cli("--coordinator", running.addresses[0], "gc", "llm", "--unknown")
    assert (code, told["llm"]["objects"]) == (0, 1)
    await until(lambda: not stranger.exists())
    assert running.images() == before
    assert (other / "pages-1.img").read_bytes() == b"theirs"
