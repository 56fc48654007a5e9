"""`POST /hooks/drain` over real HTTP and TLS: who may, what is understood, what comes of it."""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import json
import ssl
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from prometheus_client import CollectorRegistry

from coordinator.core.drain_records import DrainState
from coordinator.core.errors import BadRequest, SetupError
from coordinator.core.model import Phase
from coordinator.link.security import NO_TLS, Tls
from coordinator.page.hooks import Admission, read_token
from coordinator.page.serving import serving_page
from coordinator.page.shapes import Wanted, all_wanted, wanted_of
from tests.integration.control.test_recovery import until
from tests.support.certificates import Certificates
from tests.support.cluster import Cluster, cluster, follow
from tests.support.fake_shim import Behaviour

TOKEN = "0123456789abcdef"
NOW_S = 1_780_000_000.0
AT = "2026-05-28T20:28:40+00:00"  # two minutes after it


def page(case: Cluster, address: str = "127.0.0.1:0", tls: Tls = NO_TLS) -> Any:
    """The page of the case's coordinator, with hooks for TOKEN."""
    return serving_page(
        address, case.address, CollectorRegistry(), lambda: "", tls=tls, admission=Admission(TOKEN)
    )


async def post(url: str, body: Any, *, token: str = "", tls: Tls | None = None) -> tuple[int, Any]:
    """Status and body of an answer."""

    def ask() -> tuple[int, Any]:
        port = urlsplit(url).port or 0
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        if tls is None:
            made = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
        else:
            context = ssl.create_default_context(cafile=str(tls.ca))
            context.load_cert_chain(str(tls.certificate), str(tls.key))
            made = http.client.HTTPSConnection("127.0.0.1", port, timeout=30, context=context)
        text = body if isinstance(body, bytes) else json.dumps(body).encode()
        with contextlib.closing(made):
            made.request("POST", "/hooks/drain", text, headers)
            answer = made.getresponse()
            return answer.status, json.loads(answer.read())

    return await asyncio.to_thread(ask)


async def test_a_notice_drains_a_node_and_only_who_may_can_give_it() -> None:
    notice = {"node": "node-1", "deadline_s": 60, "why": "preempted"}
    async with cluster(2, spares=1) as case, page(case) as url:
        for token in ("", "wrong", TOKEN[:-1], f"{TOKEN}0"):
            status, told = await post(url, notice, token=token)
            assert (status, told["error"]["kind"]) == (403, "Forbidden")
        assert not any(view.drain for view in await case.client.nodes())
        status, told = await post(url, notice, token=TOKEN)
        assert (status, told["drain"]["state"]) == (202, "DRAINING")

        def drained(nodes: Any) -> bool:
            return nodes[1].drain is not None and nodes[1].drain.state is DrainState.DRAINED

        nodes = await until(case.client.nodes, drained)
        assert nodes[1].drain is not None
        assert nodes[1].drain.why == "preempted"


async def test_what_is_refused_says_why() -> None:
    async with cluster(2) as case, page(case) as url:
        for body, status, kind in (
            ({"node": "node-1"}, 409, "NoPlan"),
            ({"node": "nobody"}, 404, "NotFound"),
            ({}, 400, "BadRequest"),
            ([], 400, "BadRequest"),
            (b"{", 400, "BadRequest"),
            (b" " * 70_000, 400, "BadRequest"),
            ({"node": "node-1", "deadline_s": -1}, 400, "BadRequest"),
            ({"node": "node-1", "deadline_s": 0}, 400, "BadRequest"),
        ):
            answer = await post(url, body, token=TOKEN)
            assert (answer[0], answer[1]["error"]["kind"]) == (status, kind), body


async def test_what_cannot_be_moved_is_saved_at_least_and_once() -> None:
    async with cluster(2) as case, page(case) as url:
        for _ in range(3):
            status, told = await post(url, {"node": "node-1", "deadline_s": 20}, token=TOKEN)
            assert (status, told["error"]["kind"]) == (409, "NoPlan")
            await until(lambda: case.client.snapshots("llm"), lambda found: bool(found.latest))
        assert len((await case.client.snapshots("llm")).snapshots) == 1


async def test_a_notice_is_refused_for_want_of_time_however_often_it_is_posted() -> None:
    slow = {0: Behaviour(late_s={Phase.PERSIST: 1.0})}
    async with cluster(2, spares=1, behaviours=slow) as case, page(case) as url:
        assert (await follow(case.client.checkpoint("llm"))).error is None
        for _ in range(10):
            status, told = await post(url, {"node": "node-1", "deadline_s": 0.5}, token=TOKEN)
            assert (status, told["error"]["kind"]) == (409, "NotReady")
            assert "cannot end in the time allowed" in told["error"]["what"]
        (job,) = await case.client.jobs()
        assert job.state == "running"


async def test_a_certificate_of_an_operator_may_and_others_may_not(tmp_path: Path) -> None:
    certificates = Certificates(tmp_path)
    tls = certificates.of("coordinator", "c0")
    async with cluster(2, spares=1) as case, page(case, "0.0.0.0:0", tls) as url:
        assert url.startswith("https:")
        for role in ("viewer", "shim"):
            other = certificates.of(role, "node-1")
            status, told = await post(url, {"node": "node-1"}, tls=other)
            assert (status, told["error"]["kind"]) == (403, "Forbidden")
            assert f"{role} node-1 may not Drain" in told["error"]["what"]
        operator = certificates.of("operator", "ada")
        status, told = await post(url, {"node": "node-1"}, tls=operator)
        assert (status, told["drain"]["node"]) == (202, "node-1")


@pytest.mark.parametrize(
    ("body", "wanted"),
    [
        ({"node": "n1"}, Wanted("n1", 0.0, "a notice by HTTP")),
        ({"node": "n1", "deadline_s": 30, "why": "x"}, Wanted("n1", 30.0, "x")),
        ({"node": "n1", "action": "terminate", "time": AT}, Wanted("n1", 120.0, "terminate")),
        (
            {"kind": "DrainRequest", "spec": {"nodeName": "n1", "reason": "XID 79"}},
            Wanted("n1", 0.0, "XID 79"),
        ),
        (
            {"kind": "DrainRequest", "spec": {"nodeName": "n1"}},
            Wanted("n1", 0.0, "DrainRequest"),
        ),
        ({"address": "10.0.0.3"}, Wanted("", 0.0, "a notice by HTTP", "10.0.0.3")),
    ],
)
def test_shapes_that_are_understood(body: Any, wanted: Wanted) -> None:
    assert wanted_of(body, NOW_S) == wanted


@pytest.mark.parametrize(
    "body",
    [
        {"node": 7},
        {"node": "n1", "deadline_s": "soon"},
        {"node": "n1", "deadline_s": True},
        {"node": "n1", "deadline_s": float("nan")},
        {"node": "n1", "deadline_s": 10**400},
        {"address": 7},
        {"node": "n1", "time": "soon"},
        {"node": "n1", "time": "2026-05-28T20:27:20"},
        {"node": "n1", "time": "2020-01-01T00:00:00+00:00"},
        {"kind": "DrainRequest", "node": "", "spec": {}},
    ],
)
def test_shapes_that_are_not(body: Any) -> None:
    with pytest.raises(BadRequest):
        wanted_of(body, NOW_S)


RAY_NODES = [
    {"NodeID": "aa", "NodeManagerAddress": "10.0.0.1", "NodeManagerHostname": "n1", "Alive": True},
    {"NodeID": "bb", "NodeManagerAddress": "10.0.0.2", "NodeManagerHostname": "n2", "Alive": True},
]


def test_what_ray_tells() -> None:
    ids = ["bb", "aa"]
    at = {"deadline_ms": round((NOW_S + 60) * 1000), "preempted_ranks": [0], "nodes": RAY_NODES}
    assert all_wanted({**at, "preempted_node_ids": ids}, NOW_S) == (
        Wanted("n2", pytest.approx(60.0), "Ray drains its node", "10.0.0.2"),  # type: ignore[arg-type]
        Wanted("n1", pytest.approx(60.0), "Ray drains its node", "10.0.0.1"),  # type: ignore[arg-type]
    )
    (one,) = all_wanted({**at, "deadline_ms": 0, "preempted_node_ids": ["aa"]}, NOW_S)
    assert one.deadline_s == 0.0


@pytest.mark.parametrize(
    "body",
    [
        {"preempted_node_ids": []},
        {"preempted_node_ids": "aa"},
        {"preempted_node_ids": ["aa"]},
        {"preempted_node_ids": ["cc"], "nodes": RAY_NODES},
        {"preempted_node_ids": [[]], "nodes": RAY_NODES},
        {"preempted_node_ids": ["aa"], "nodes": {}},
        {"preempted_node_ids": ["aa"], "nodes": [{"NodeID": "aa"}]},
        {"preempted_node_ids": ["aa"], "nodes": RAY_NODES, "deadline_ms": 1_000},
        {"preempted_node_ids": ["aa"] * 2_000, "nodes": RAY_NODES},
    ],
)
def test_what_ray_would_not_tell(body: Any) -> None:
    with pytest.raises(BadRequest):
        all_wanted(body, NOW_S)


async def test_nodes_are_known_by_their_addresses_and_each_is_answered_for_itself() -> None:
    async with cluster(2, spares=1) as case, page(case) as url:
        addresses = {v.facts.node: v.facts.address for v in await case.client.nodes()}
        nodes = [
            {"NodeID": name, "NodeManagerAddress": address, "NodeManagerHostname": f"ip-{name}"}
            for name, address in (*addresses.items(), ("gone", "192.0.2.1"))
        ]
        told = {"deadline_ms": 0, "preempted_node_ids": ["node-1", "gone"], "nodes": nodes}
        status, answer = await post(url, told, token=TOKEN)
        first, second = answer["drains"]
        assert (status, first["drain"]["node"]) == (404, "node-1")
        assert second["error"]["kind"] == "NotFound"
        again = {"address": addresses["node-1"], "deadline_s": 60}
        status, answer = await post(url, again, token=TOKEN)
        assert (status, answer["drain"]["node"]) == (202, "node-1")
        left_s = answer["drain"]["deadline_unix_s"] - answer["drain"]["requested_unix_s"]
        assert left_s < 65, "what is told later, and is sooner, counts"

        def drained(nodes: Any) -> bool:
            return nodes[1].drain is not None and nodes[1].drain.state is DrainState.DRAINED

        await until(case.client.nodes, drained)


def test_a_token_is_a_secret(tmp_path: Path) -> None:
    path = tmp_path / "token"
    with pytest.raises(SetupError):
        read_token(path)
    path.write_text(f"{TOKEN}\n")
    path.chmod(0o644)
    with pytest.raises(SetupError, match="read by others"):
        read_token(path)
    path.chmod(0o600)
    assert read_token(path) == TOKEN
    path.write_text("short")
    with pytest.raises(SetupError, match="too short"):
        read_token(path)
    assert read_token(None) == ""
