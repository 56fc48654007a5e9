"""The command runner against real programs."""

from __future__ import annotations

import asyncio
import os
import time
from pathlib import Path

import pytest

from coordinator.core.errors import DriverError
from worker_shim.process.runner import CommandRunner


async def test_output_exit_code_and_input_are_kept_apart() -> None:
    finished = await CommandRunner().run(
        ["sh", "-c", "read line; echo got $line $WORD; echo bad >&2; pwd; exit 3"],
        deadline_s=10,
        env={"WORD": "word", "PATH": os.environ["PATH"]},
        cwd="/",
        stdin="hello\n",
    )
    assert finished.exit_code == 3
    assert finished.stdout == "got hello word\n/\n"
    assert finished.stderr == "bad\n"
    with pytest.raises(DriverError, match="the test: sh ended with exit code 3") as caught:
        finished.require("the test")
    assert caught.value.details == ("bad",)


async def test_a_missing_program_is_named_and_surely_did_nothing() -> None:
    with pytest.raises(DriverError, match="/no/such/criu") as caught:
        await CommandRunner().run(["/no/such/criu", "check"], deadline_s=5)
    assert caught.value.definite


async def test_at_the_deadline_the_whole_group_is_killed(tmp_path: Path) -> None:
    script = f"sleep 300 & echo $! > {tmp_path}/child; echo waiting >&2; wait"
    started = time.monotonic()
    with pytest.raises(DriverError, match=r"did not end within 0\.5 s") as caught:
        await CommandRunner().run(["sh", "-c", script], deadline_s=0.5)
    assert time.monotonic() - started < 5
    assert not caught.value.definite
    assert caught.value.details == ("waiting",)
    assert await _gone(int((tmp_path / "child").read_text()))


async def test_a_cancelled_caller_leaves_nothing_running(tmp_path: Path) -> None:
    ready = tmp_path / "ready"
    os.mkfifo(ready)
    task = asyncio.create_task(
        CommandRunner().run(["sh", "-c", f"echo $$ > {ready}; sleep 300"], deadline_s=60)
    )
    pid = int(await asyncio.to_thread(ready.read_text))
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert await _gone(pid)


async def test_a_process_left_behind_with_the_pipe_does_not_hold_the_caller(tmp_path: Path) -> None:
    finished = await CommandRunner().run(
        ["sh", "-c", "setsid sleep 300 & echo $!; exit 0"], deadline_s=10
    )
    left = int(finished.stdout)
    os.kill(left, 9)
    assert finished.took_ms < 5000


async def test_only_the_end_of_much_output_is_kept() -> None:
    finished = await CommandRunner(output_bytes_max=1000).run(
        ["sh", "-c", "seq 1 100000"], deadline_s=20
    )
    assert finished.truncated
    assert len(finished.stdout) == 1000
    assert finished.stdout.endswith("99999\n100000\n")


async def test_a_signal_shows_as_its_negative_number() -> None:
    finished = await CommandRunner().run(["sh", "-c", "kill -TERM $$"], deadline_s=10)
    assert finished.exit_code == -15
    with pytest.raises(DriverError, match="was killed by SIGTERM"):
        finished.require("the test")


async def _gone(pid: int) -> bool:
    """True once the process has ended; a zombie that nobody reaped counts as ended."""
    for _ in range(500):
        if _state(pid) in ("", "Z"):
            return True
        await asyncio.sleep(0.01)
    return False


def _state(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return ""
