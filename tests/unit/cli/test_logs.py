"""`allstop logs`: whose line it is, what is told beside it, and how it ends."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections import deque
from collections.abc import Callable

import pytest
from allstop.v1 import logs_pb2, operator_pb2, records_pb2

from .conftest import Cli

WAIT_S = 20.0


def part(worker: int, data: str, **more: object) -> logs_pb2.LogPart:
    fields = {"source": "output", "file": "f", "node": f"node-{worker}", "next": len(data), **more}
    return logs_pb2.LogPart(worker=worker, data=data.encode(), **fields)  # type: ignore[arg-type]


def reply(*parts: logs_pb2.LogPart) -> operator_pb2.ReadLogsReply:
    return operator_pb2.ReadLogsReply(parts=parts)


AWAY = logs_pb2.LogPart(
    worker=1,
    node="node-1",
    failure=records_pb2.Failure(
        kind="LinkError",
        what="worker 1: node-1 is lost",
        node="node-1",
        definite=True,
        advice="look",
    ),
)


def test_each_line_says_whose_it_is(cli: Cli) -> None:
    cli.operator.replies["ReadLogs"] = reply(part(0, "a\nb\n"), part(1, "c\nno end"))
    ran = cli("logs", "llm", "--lines", "7")
    assert (ran.code, ran.out) == (0, "0 | a\n0 | b\n1 | c\n1 | no end\n")
    assert cli.request("ReadLogs").lines == 7


def test_of_one_rank_nothing_is_put_before_a_line(cli: Cli) -> None:
    cli.operator.replies["ReadLogs"] = deque(
        [
            reply(part(1, "a\nbe", source="stdout", more=True)),
            reply(part(1, "gun\n", source="stdout")),
        ]
    )
    ran = cli("logs", "llm", "--rank", "3")
    assert (ran.code, ran.out) == (0, "a\nbegun\n")
    first, second = (request for _, request in cli.operator.requests)
    assert (first.places[0].of_rank, first.places[0].rank, first.places[0].file) == (True, 3, "")
    asked = second.places[0]
    assert (asked.worker, asked.rank, asked.source, asked.file, asked.offset) == (
        1, 3, "stdout", "f", 4,
    )  # fmt: skip


def test_json_is_one_object(cli: Cli) -> None:
    cli.operator.replies["ReadLogs"] = reply(part(0, "a\nb\n"))
    assert cli("logs", "llm", "-o", "json").json == {
        "job": "llm",
        "outputs": [{"worker": 0, "source": "output", "node": "node-0", "lines": ["a", "b"]}],
    }


def test_who_cannot_be_read_is_named_beside_the_others(cli: Cli) -> None:
    cli.operator.replies["ReadLogs"] = reply(part(0, "a\n", note="older is not kept"), AWAY)
    ran = cli("logs", "llm")
    assert (ran.code, ran.out) == (11, "0 | a\n")
    assert "error: worker 1: node-1 is lost" in ran.err
    assert "worker 0 on node-0: older is not kept" in ran.err
    told = cli("logs", "llm", "-o", "json").json
    assert told["error"]["node"] == "node-1"
    assert told["outputs"][0]["lines"] == ["a"]


def test_one_worker_or_one_rank(cli: Cli) -> None:
    ran = cli("logs", "llm", "--rank", "1", "--worker", "0")
    assert ran.code == 2
    assert "exclude each other" in ran.err


@pytest.mark.parametrize("form", ["table", "json"])
def test_a_follower_goes_on_until_ctrl_c(cli: Cli, form: str) -> None:
    nothing = part(0, "", next=2)
    cli.operator.replies["ReadLogs"] = deque(
        [reply(part(0, "a\n")), reply(AWAY), reply(AWAY), reply(part(0, "b\nbegun", next=9)),
         reply(nothing)]
    )  # fmt: skip
    process = subprocess.Popen(
        [sys.executable, "-m", "coordinator.cli.main", "logs", "llm", "--follow", "-o", form],
        env=cli.environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        until(lambda: len(cli.operator.requests) >= 5)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=20)
    finally:
        process.kill()
        process.wait(10)
    assert process.returncode == 0, err
    assert err.count("node-1 is lost") == 1, "said once"
    assert "Traceback" not in err
    lines = out.splitlines()
    if form == "json":
        assert [json.loads(line)["line"] for line in lines] == ["a", "b", "begun"]
    else:
        assert lines == ["0 | a", "0 | b", "0 | begun"]


def until(look: Callable[[], bool]) -> None:
    deadline = time.monotonic() + WAIT_S
    while not look():
        assert time.monotonic() < deadline
        time.sleep(0.02)
