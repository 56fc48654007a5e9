"""NO_COLOR on a real terminal: no verb writes a colour, and without it there would be some."""

from __future__ import annotations

import os
import pty
import re
import subprocess
import sys
from collections.abc import Callable

import pytest
from allstop.v1 import logs_pb2, operator_pb2, records_pb2

from coordinator.core.errors import Busy

from .conftest import Cli

# SGR with a colour in it: 30-37, 39-47, 49, 90-107, 38;…, 48;…
COLOUR = re.compile(rb"\x1b\[(?:\d+;)*(?:3\d|4\d|9\d|10[0-7])(?:;\d+)*m")
RUN_TIMEOUT_S = 30


def on_a_terminal(cli: Cli, *words: str, **env: str) -> bytes:
    """What a run writes where stdout and stderr are one terminal."""
    master, slave = pty.openpty()
    kept = {name: value for name, value in cli.environment().items() if name != "NO_COLOR"}
    process = subprocess.Popen(
        [sys.executable, "-m", "coordinator.cli.main", *words],
        env={**kept, "TERM": "xterm-256color", **env},
        stdin=subprocess.DEVNULL,
        stdout=slave,
        stderr=slave,
    )
    os.close(slave)
    heard = b""
    try:
        while chunk := _read(master):
            heard += chunk
        process.wait(RUN_TIMEOUT_S)
    finally:
        process.kill()
        process.wait(10)
        os.close(master)
    return heard


def _read(master: int) -> bytes:
    try:
        return os.read(master, 65536)
    except OSError:  # nobody has the other end any more
        return b""


def jobs(cli: Cli) -> tuple[str, ...]:
    job = records_pb2.JobRecord(job="llm", workers=1, incarnation=1)
    cli.operator.replies["ListJobs"] = operator_pb2.ListJobsReply(
        jobs=[operator_pb2.JobView(job=job, state="running")]
    )
    return ("jobs",)


def refused(cli: Cli) -> tuple[str, ...]:
    cli.operator.replies["Checkpoint"] = Busy("another one has it", advice="wait")
    return ("checkpoint", "llm")


def followed(cli: Cli) -> tuple[str, ...]:
    cli.operator.replies["Watch"] = [
        operator_pb2.ActionEvent(action="a", state="HOLDING", elapsed_ms=1),
        operator_pb2.ActionEvent(action="a", state="COMMITTED", elapsed_ms=9, last=True),
    ]
    return ("watch", "a")


def put_out(cli: Cli) -> tuple[str, ...]:
    data = b"\x1b[31mred\x1b[0m\n"
    part = logs_pb2.LogPart(source="output", file="f", data=data, node="n", next=len(data))
    cli.operator.replies["ReadLogs"] = operator_pb2.ReadLogsReply(parts=[part])
    return ("logs", "llm")


def wrong_file(cli: Cli) -> tuple[str, ...]:
    return ("config", "check", "/nowhere.toml")


@pytest.mark.parametrize("prepare", [jobs, refused, followed, put_out, wrong_file])
def test_no_colour_where_none_is_wanted(
    cli: Cli, prepare: Callable[[Cli], tuple[str, ...]]
) -> None:
    words = prepare(cli)
    coloured = on_a_terminal(cli, *words)
    assert COLOUR.search(coloured), "the terminal can show colours, and gets some"
    plain = on_a_terminal(cli, *words, NO_COLOR="1")
    assert not COLOUR.search(plain), plain
    assert plain.strip()
