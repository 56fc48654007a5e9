"""`docker compose up`, and the story in it: each test goes on where the one before it ended."""

from __future__ import annotations

import asyncio
import json
import time
from typing import Any

import pytest

from coordinator.api.client import OperatorClient
from coordinator.telemetry.spans import span_id, trace_id
from deploy.containers.cluster import CONTROL
from lab.demo.story import TRAIN_TIMEOUT_S, same_bits
from tests.integration.compose.conftest import OPTIONS, Playing

pytestmark = [
    pytest.mark.root,
    pytest.mark.torch,
    pytest.mark.slow,
    pytest.mark.timeout(1500),  # the first builds the images
]

NODES = ("node-0", "node-1", "spare-0")
CAPABILITIES = (  # their numbers in <linux/capability.h>
    *(0, 1, 3, 5, 6, 7, 8),  # CHOWN DAC_OVERRIDE FOWNER KILL SETGID SETUID SETPCAP
    *(12, 18, 19, 21, 25),  # NET_ADMIN SYS_CHROOT SYS_PTRACE SYS_ADMIN SYS_TIME
)
START_S = 240.0
SPANS_S = 30.0


def status(playing: Playing, service: str) -> dict[str, str]:
    """What the kernel says of a container's first process."""
    text, _, _ = playing.compose.exec_in_container(["cat", "/proc/1/status"], service)
    return {key: value.strip() for key, _, value in (x.partition(":") for x in text.splitlines())}


def test_every_service_is_healthy(playing: Playing) -> None:
    states = {each.Service: each for each in playing.compose.get_containers(include_all=True)}
    assert states.keys() == {*CONTROL, *NODES, "certs"}
    assert {name: states[name].Health for name in (*CONTROL, *NODES)} == dict.fromkeys(
        (*CONTROL, *NODES), "healthy"
    )
    assert (states["certs"].State, states["certs"].ExitCode) == ("exited", 0)


@pytest.mark.parametrize("service", NODES)
def test_a_node_has_the_capabilities_that_are_listed_and_no_other(
    playing: Playing, service: str
) -> None:
    host = playing.cluster.inspect(service)["HostConfig"]
    assert host["Privileged"] is False
    found = status(playing, service)
    wanted = sum(1 << number for number in CAPABILITIES)
    assert int(found["CapEff"], 16) == int(found["CapBnd"], 16) == wanted
    assert int(found["CapInh"], 16) == int(found["CapAmb"], 16) == 0


@pytest.mark.parametrize("service", CONTROL)
def test_the_control_plane_has_no_capability_and_is_not_root(
    playing: Playing, service: str
) -> None:
    host = playing.cluster.inspect(service)["HostConfig"]
    assert host["Privileged"] is False
    assert host["ReadonlyRootfs"] is True
    found = status(playing, service)
    assert found["Uid"].split() == ["7411"] * 4
    assert int(found["CapBnd"], 16) == int(found["CapEff"], 16) == 0
    assert found["NoNewPrivs"] == "1"


def test_each_has_its_own_key_and_nobody_the_authority_s(playing: Playing) -> None:
    for service, own in (("node-1", "shim-node-1.key"), ("etcd-2", "coordinator-etcd.key")):
        seen, _, _ = playing.compose.exec_in_container(["ls", "/tls"], service)
        assert [name for name in seen.split() if name.endswith(".key")] == [own]


async def test_all_ranks_are_saved_at_one_step(playing: Playing) -> None:
    async with OperatorClient(playing.stage.coordinators, tls=playing.stage.tls) as client:
        await playing.story.reach(client, OPTIONS.checkpoint_at, START_S)
        attempt, snapshot = await playing.story.checkpoint(client)
    steps = {rank.rank: rank.boundary for worker in snapshot.workers for rank in worker.ranks}
    assert steps == {0: snapshot.step, 1: snapshot.step}
    playing.action, playing.snapshot = attempt.attempt, snapshot


async def test_the_sink_received_one_trace_down_to_the_ranks(playing: Playing) -> None:
    spans: list[dict[str, Any]] = []
    deadline = time.monotonic() + SPANS_S
    while f"{span_id(playing.action):016x}" not in {span["spanId"] for span in spans}:
        assert time.monotonic() < deadline, f"{len(spans)} spans came, the root did not"
        await asyncio.sleep(0.5)
        text = playing.cluster.execute("sink", "cat", "/var/lib/otlp/spans.jsonl")
        spans = [json.loads(line) for line in text.splitlines()]
    of_action = [span for span in spans if told(span, "allstop.action") == playing.action]
    assert {span["traceId"] for span in of_action} == {f"{trace_id(playing.action):032x}"}
    ranks = {(told(span, "allstop.node"), told(span, "allstop.rank")) for span in of_action}
    assert {("node-0", "0"), ("node-1", "1")} <= ranks


def told(span: dict[str, Any], name: str) -> str:
    """One attribute of a span as text; empty where it has none."""
    found = next((each["value"] for each in span["attributes"] if each["key"] == name), {})
    return str(next(iter(found.values()), ""))


async def test_a_killed_node_s_worker_goes_on_in_the_spare_one(playing: Playing) -> None:
    assert playing.snapshot is not None
    async with OperatorClient(playing.stage.coordinators, tls=playing.stage.tls) as client:
        lost_at, _, _ = await playing.story.lose_a_node(client)
        restored, _ = await playing.story.restore(client)
        moved = [each for each in restored.plan.placements if each.to_node != each.from_node]
        assert [(each.from_node, each.to_node) for each in moved] == [("node-1", "spare-0")]
        assert moved[0].from_address != moved[0].to_address
        assert moved[0].to_address == playing.cluster.address("spare-0")
        assert playing.story.connections_kept(playing.snapshot, restored) > 0
        await playing.story.reach(client, lost_at + 1, TRAIN_TIMEOUT_S)
        await playing.story.reach_end(client)
    state = playing.cluster.inspect("node-1")["State"]
    assert (state["Status"], state["ExitCode"]) == ("exited", 137), "it must not come back"


def test_the_job_ended_as_one_that_nothing_happened_to(playing: Playing) -> None:
    ended = playing.stage.result()
    assert ended is not None
    assert same_bits(ended, playing.stage.undisturbed())


def test_nothing_is_left_afterwards(playing: Playing) -> None:
    playing.cluster.down()
    mine = ("--filter", f"label=com.docker.compose.project={playing.cluster.project}", "--quiet")
    for listing in (["ps", "--all"], ["volume", "ls"], ["network", "ls"]):
        assert playing.cluster.docker(*listing, *mine) == "", listing
