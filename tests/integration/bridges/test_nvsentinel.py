"""DrainRequests of NVSentinel over a real coordinator: drained, evicted, told; refused, again."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import replace

import pytest

from coordinator.api.client import OperatorClient
from coordinator.bridges.kubernetes import Kubernetes
from coordinator.bridges.nvsentinel import NvSentinel
from coordinator.core.errors import LinkError, SetupError
from coordinator.server.testing import running_coordinator
from coordinator.store.memory import MemoryKeyValue, MemoryStore
from tests.integration.control.test_recovery import until
from tests.support.cluster import QUICK, Cluster, cluster, follow
from tests.support.fake_shim import attached
from tests.support.kubernetes_api import Api, serving_api

WHY = {"recommendedAction": "RESTART_BM", "reason": "GPU has fallen off the bus."}


@contextlib.asynccontextmanager
async def bridged(case: Cluster, api: Api | None = None) -> AsyncIterator[tuple[Api, NvSentinel]]:
    """An API whose gpu-1 has the pods of node-1's shim and one more."""
    api = api or Api()
    addresses = {view.facts.node: view.facts.address for view in await case.client.nodes()}
    api.pod("llm-node-0-1", "gpu-1", addresses["node-1"])
    api.pod("other", "gpu-1", "10.1.1.1", "web")
    api.pod("llm-node-0-0", "gpu-0", addresses["node-0"])
    with serving_api(api) as url:
        yield api, NvSentinel(Kubernetes(url), case.client, again_s=0.0)


async def looked(bridge: NvSentinel, api: Api, name: str, reason: str) -> str:
    """Look until the condition of a request has that reason; what it says."""
    async with asyncio.timeout(20):
        while api.condition(name).get("reason") != reason:
            await bridge.look()
            await asyncio.sleep(0.02)
    condition = api.condition(name)
    assert condition["lastTransitionTime"].endswith("Z")
    return str(condition["message"])


async def places(case: Cluster) -> tuple[str, ...]:
    (job,) = await case.client.jobs()
    return job.nodes


async def test_a_node_is_drained_its_pods_are_evicted_and_that_is_told() -> None:
    async with cluster(2, spares=1) as case, bridged(case) as (api, bridge):
        pods = {"training": ["llm-node-0-1"], "web": ["other"]}
        api.drain_request("drain-gpu-1-e1", "gpu-1", **WHY, podsToDrain=pods)
        kept = {"type": "Seen", "status": "True", "reason": "Test", "message": ""}
        api.requests["drain-gpu-1-e1"]["status"] = {"conditions": [kept]}
        api.budget, api.conflicts = 3, 1
        assert "node-1: " in await looked(bridge, api, "drain-gpu-1-e1", "Draining")
        assert len(api.pods) == 3, "first the jobs"
        told = await looked(bridge, api, "drain-gpu-1-e1", "Evicting")
        assert told == (
            "no job of allstop is on gpu-1; pods to go: training/llm-node-0-1, web/other"
        )
        assert await places(case) == ("node-0", "node-2")
        assert api.condition("drain-gpu-1-e1")["status"] == "False"
        told = await looked(bridge, api, "drain-gpu-1-e1", "Drained")
        assert told == "no job of allstop is on gpu-1, nor a pod that was named"
        assert api.condition("drain-gpu-1-e1")["status"] == "True"
        assert api.condition("drain-gpu-1-e1", "Seen") == kept
        assert set(api.pods) == {("training", "llm-node-0-0")}
        nodes = {view.facts.node: view.drain for view in await case.client.nodes()}
        assert nodes["node-1"] is not None
        assert nodes["node-1"].why == "NVSentinel: RESTART_BM GPU has fallen off the bus."
        before = api.writes()
        await bridge.look()
        assert api.writes() == before, "it is complete"
        api.drain_request("drain-gpu-1-e2", "gpu-1")  # of another event of that node
        await looked(bridge, api, "drain-gpu-1-e2", "Drained")


async def test_what_cannot_be_moved_is_told_why_and_tried_again_later() -> None:
    async with cluster(2) as case, bridged(case) as (api, bridge):
        bridge.again_s = 3600.0
        api.drain_request("r", "gpu-1", podsToDrain={"web": ["other"]})
        assert "node-1" in await looked(bridge, api, "r", "NoPlan")
        assert len(api.pods) == 3
        before = api.writes()
        await bridge.look()
        assert api.writes() == before
        (job,) = await case.client.jobs()
        assert job.state == "running"
        async with attached(case.address, 0, spares=1, first=7):
            await bridge.look()
            assert api.condition("r")["reason"] == "NoPlan", "it is not the time yet"
            bridge._not_before.clear()
            bridge.again_s = 0.0
            await looked(bridge, api, "r", "Drained")
            assert await places(case) == ("node-0", "node-7")


async def test_nodes_without_a_shim_and_nodes_that_are_lost_are_emptied_of_pods() -> None:
    async with cluster(2) as case, bridged(case) as (api, bridge):
        api.pod("batch", "cpu-1", "10.1.1.9", "web")
        api.drain_request("r1", "cpu-1", podsToDrain={"web": ["batch", "long-gone"]})
        await looked(bridge, api, "r1", "Drained")
        case.shims[1].vanish()
        await until(case.client.nodes, lambda nodes: nodes[1].state == "lost")
        api.drain_request("r2", "gpu-1", podsToDrain={"training": ["llm-node-0-1"]})
        await looked(bridge, api, "r2", "Drained")
        assert ("training", "llm-node-0-1") not in api.pods
        assert ("web", "other") in api.pods, "it was not named"


async def test_a_new_leader_that_knows_no_nodes_yet_completes_nothing() -> None:
    kv = MemoryKeyValue()
    api, quick = Api(), replace(QUICK, adopt_s=2.0)
    async with cluster(2, store=MemoryStore(kv)) as case, bridged(case, api):
        assert (await follow(case.client.checkpoint("llm"))).error is None
    api.drain_request("r", "gpu-1", podsToDrain={"training": ["llm-node-0-1"]})
    async with (
        running_coordinator(store=MemoryStore(kv), policy=quick, name="second") as leader,
        OperatorClient([leader.address]) as client,
    ):
        case = Cluster(leader, [], client)
        with serving_api(api) as url:
            bridge = NvSentinel(Kubernetes(url), client, again_s=0.0)
            told = await looked(bridge, api, "r", "NotReady")
            assert "the leader is new" in told
            assert len(api.pods) == 3, "a job may run in them"
            async with attached(leader.address, 2, spares=1):
                await looked(bridge, api, "r", "Drained")
                assert await places(case) == ("node-0", "node-2")


async def test_what_makes_no_sense_stops_no_other_request() -> None:
    async with cluster(2, spares=1) as case, bridged(case) as (api, bridge):
        api.drain_request("bad", 7)
        api.drain_request("nowhere", "")
        api.requests["odd"] = {"metadata": {"name": "odd", "resourceVersion": "1"}, "spec": []}
        api.requests["worse"] = {"metadata": []}
        api.drain_request("pods", "cpu-9", podsToDrain={"web": "all"}, reason=["x"])
        api.drain_request("good", "gpu-1")
        await looked(bridge, api, "good", "Drained")
        assert api.condition("bad")["reason"] == "BadRequest"
        assert api.condition("pods")["status"] == "True"


async def test_an_api_that_is_away_or_refuses_is_told_of(monkeypatch: pytest.MonkeyPatch) -> None:
    async with cluster(1) as case:
        api = Api()
        with serving_api(api) as url:
            bridge = NvSentinel(Kubernetes(url), case.client)
            await bridge.look()
            api.status = 403
            with pytest.raises(LinkError, match="403 a test"):
                await bridge.look()
        with pytest.raises(LinkError):
            await bridge.look()
        running = asyncio.create_task(bridge.run(0.01))
        await asyncio.sleep(0.2)
        assert not running.done(), "it goes on"
        running.cancel()
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    for url in ("", "ftp://h", "https://h"):  # the last has no authority here
        with pytest.raises(SetupError):
            Kubernetes(url)
