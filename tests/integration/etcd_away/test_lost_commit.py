"""A commit whose answer is lost is settled by reading, by this leader or by the next one."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from coordinator.api.client import OperatorClient
from coordinator.core.model import AttemptState
from coordinator.store.etcd import EtcdKeyValue, EtcdOptions
from coordinator.store.records import Records
from tests.integration.etcd_away.coordinators import CoordinatorProcess, coordinator
from tests.integration.etcd_away.members import Members, started
from tests.integration.etcd_away.nodes import Node
from tests.integration.etcd_away.proxy import Fate, Proxy
from tests.integration.etcd_away.stage import JOB, job_at, running, until
from tests.support.cluster import Followed, follow

pytestmark = [pytest.mark.etcd, pytest.mark.timeout(120)]

LEASE_S, NEXT_LEASE_S = 20.0, 4.0
STRUCK_S = 30.0


@pytest.fixture
def members(tmp_path: Path) -> Iterator[Members]:
    """One real etcd."""
    with started(tmp_path / "etcd") as made:
        yield made


@asynccontextmanager
async def standby(first: CoordinatorProcess, members: Members) -> AsyncIterator[CoordinatorProcess]:
    """A second coordinator that reaches etcd directly, once the first leads."""
    await first.leads()
    async with coordinator(members.endpoints, lease_s=NEXT_LEASE_S, name="second") as second:
        yield second


async def committed(members: Members) -> list[str]:
    """The snapshots that are in etcd, asked directly."""
    kv = EtcdKeyValue(EtcdOptions(tuple(members.endpoints)))
    try:
        store = Records(kv)
        found = [each.snapshot for each in await store.snapshots(JOB)]
        for each in found:
            assert len((await store.snapshot(each)).workers) == 2
        return found
    finally:
        await kv.close()


def check(went: Followed, nodes: list[Node], found: list[str], *, applied: bool) -> None:
    """The operator, the store and the images say the same, and the job runs in any case."""
    action = went.last.action
    assert went.last.state == (AttemptState.COMMITTED if applied else AttemptState.ABORTED)
    assert found == ([action] if applied else [])
    assert bool(nodes[0].stored(action)) == applied
    for node in nodes:
        assert node.free
        assert not node.let_go_by_itself
        assert not node.staged()


@pytest.mark.parametrize("fate", list(Fate))
async def test_the_leader_looks(tmp_path: Path, members: Members, fate: Fate) -> None:
    async with (
        Proxy(members.endpoints[0], fate) as proxy,
        coordinator([proxy.endpoint], lease_s=LEASE_S) as leader,
        job_at(tmp_path / "nodes", leader.address) as nodes,
        OperatorClient([leader.address]) as client,
    ):
        await running(client)
        went = await follow(client.checkpoint(JOB))
        assert proxy.struck.is_set()
        await leader.said(lambda line: "the commit's answer was lost; looking" in line, within_s=5)
        if fate is Fate.KEPT_BACK:  # it reaches etcd after the leader has said that there is none
            proxy.delivered.set()
            async with asyncio.timeout(10):
                await proxy.arrived.wait()
        await until(lambda: all(node.free for node in nodes), 10)
        check(went, nodes, await committed(members), applied=fate is Fate.APPLIED)
        if fate is not Fate.APPLIED:
            assert "was tried and is not in the store" in str(went.error)
        again = await follow(client.checkpoint(JOB))
        assert again.error is None


@pytest.mark.parametrize("fate", list(Fate))
async def test_the_next_leader_looks(tmp_path: Path, members: Members, fate: Fate) -> None:
    async with (
        Proxy(members.endpoints[0], fate) as proxy,
        coordinator([proxy.endpoint], lease_s=NEXT_LEASE_S) as first,
        standby(first, members) as second,
        job_at(tmp_path / "nodes", first.address, second.address) as nodes,
        OperatorClient([first.address, second.address]) as client,
    ):
        await running(client)
        old = await first.leads()
        asking = client.checkpoint(JOB)
        action = (await anext(asking)).action
        async with asyncio.timeout(STRUCK_S):
            await proxy.struck.wait()
        await first.kill()
        await asking.aclose()
        assert await second.leads() > old
        if fate is Fate.KEPT_BACK:  # the old leader's transaction arrives under the new one
            proxy.delivered.set()
            async with asyncio.timeout(10):
                await proxy.arrived.wait()
        async with OperatorClient([second.address]) as later:
            await running(later)
            went = await follow(later.watch(action))
            await until(lambda: all(node.free for node in nodes), 10)
            check(went, nodes, await committed(members), applied=True)
            snapshot = (await later.show(action)).snapshot
            assert snapshot is not None
            by_the_first = snapshot.epoch == old
            assert by_the_first == (fate is Fate.APPLIED), "the next leader finishes what it finds"
            again = await follow(later.checkpoint(JOB))
            assert again.error is None
