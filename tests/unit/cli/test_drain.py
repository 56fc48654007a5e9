"""`drain`, `undrain` and `nodes`: what is asked, how it is followed, what is told, exit codes."""

from __future__ import annotations

from collections import deque

from allstop.v1 import operator_pb2 as pb
from allstop.v1 import records_pb2 as records

from coordinator.core.errors import NoPlan, Where

from .conftest import Cli, FakeOperator


def record(state: str, step: str = "", reason: str = "", why: str = "") -> records.DrainRecord:
    number = records.DrainState.Value(f"DRAIN_STATE_{state}")
    made = records.DrainRecord(node="n1", state=number, why=why, reason=reason)
    if step:
        at = records.DrainStep.Value(f"DRAIN_STEP_{step}")
        made.jobs.add(job="llm", step=at, snapshot="llm-a1")
    return made


def reply(drain: records.DrainRecord | None) -> pb.ListNodesReply:
    view = pb.NodeView(facts=records.NodeFacts(node="n1"), state="attached")
    if drain is not None:
        view.drain.CopyFrom(drain)
    return pb.ListNodesReply(nodes=[view])


def test_a_drain_is_followed_until_the_node_is_empty(cli: Cli, operator: FakeOperator) -> None:
    operator.replies["Drain"] = pb.DrainReply(drain=record("DRAINING", "WAITING"))
    operator.replies["ListNodes"] = deque(
        [reply(record("DRAINING", "STOPPING")), reply(record("DRAINED", "MOVED"))]
    )
    ran = cli("drain", "n1", "--deadline", "2m", "--why", "a new kernel")
    assert ran.code == 0, ran.err
    request = cli.request("Drain")
    assert (request.node, request.deadline_s, request.why) == ("n1", 120.0, "a new kernel")
    assert "job llm is STOPPING" in ran.err
    assert "job llm is MOVED" in ran.err
    assert "n1 is drained and empty" in ran.out
    assert "llm-a1" in ran.out


def test_detached_it_is_only_begun(cli: Cli, operator: FakeOperator) -> None:
    operator.replies["Drain"] = pb.DrainReply(drain=record("DRAINING", "WAITING"))
    ran = cli("-o", "json", "drain", "n1", "--detach")
    assert (ran.code, ran.json["state"]) == (0, "DRAINING")


def test_one_that_fails_or_is_called_off_says_so(cli: Cli, operator: FakeOperator) -> None:
    operator.replies["Drain"] = pb.DrainReply(drain=record("DRAINING", "WAITING"))
    operator.replies["ListNodes"] = reply(record("FAILED", "STAYED", "job llm stayed: no room"))
    ran = cli("drain", "n1")
    assert ran.code == 9
    assert "job llm stayed: no room" in ran.err
    operator.replies["ListNodes"] = reply(None)
    ran = cli("drain", "n1")
    assert ran.code == 3
    assert "called off" in ran.err


def test_a_refused_one_gives_every_reason(cli: Cli, operator: FakeOperator) -> None:
    details = ("n2, worker 1: it runs worker 0 of job other",)
    operator.replies["Drain"] = NoPlan("no node", where=Where(job="llm"), details=details)
    ran = cli("drain", "n1")
    assert ran.code == 6
    assert details[0] in ran.err


def test_undrain(cli: Cli, operator: FakeOperator) -> None:
    operator.replies["Undrain"] = pb.DrainReply(drain=record("UNDRAINED"))
    ran = cli("undrain", "n1")
    assert (ran.code, cli.request("Undrain").node) == (0, "n1")
    assert "n1 takes workers" in ran.out


def test_nodes_say_how_their_drains_stand(cli: Cli, operator: FakeOperator) -> None:
    operator.replies["ListNodes"] = reply(record("DRAINED", why="a new kernel"))
    ran = cli("nodes")
    assert ran.code == 0, ran.err
    assert "drained" in ran.out
    assert "kernel" in ran.out
    ran = cli("-o", "json", "nodes")
    assert ran.json[0]["drain"]["state"] == "DRAINED"
