"""`checkpoint`, `restore`, `watch`: progress for people, the end for programs, exit codes."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
from collections.abc import Callable

import pytest
from allstop.v1 import operator_pb2 as pb
from allstop.v1 import records_pb2 as records

from coordinator.codec import to_proto
from coordinator.core.errors import AttemptFailed, Busy, RestoreFailed, Where
from coordinator.core.failures import failure_of

from .conftest import RUN_TIMEOUT_S, Cli, FakeOperator

ATTEMPT = records.AttemptRecord(
    attempt="llm-2", job="llm", state=records.ATTEMPT_STATE_COMMITTED, cut=records.CUT_STEP
)
SNAPSHOT = records.Snapshot(snapshot="llm-2", job="llm", step=152, cut=records.CUT_STEP)


def event(state: str, elapsed_ms: int, *awaited: pb.Awaited, last: bool = False) -> pb.ActionEvent:
    return pb.ActionEvent(
        action="llm-2", state=state, elapsed_ms=elapsed_ms, awaited=awaited, expected=2, last=last,
        reason=f"because of {state.lower()}",
    )  # fmt: skip


def committed() -> list[pb.ActionEvent]:
    slow = pb.Awaited(worker=1, node="node-1", ranks=[2, 3], age_ms=300)
    end = event("COMMITTED", 1900, last=True)
    end.attempt.CopyFrom(ATTEMPT)
    end.snapshot.CopyFrom(SNAPSHOT)
    return [event("PARKING", 10, slow), event("DUMPING", 40), end]


def failed(error: AttemptFailed | RestoreFailed, state: str) -> list[pb.ActionEvent]:
    end = event(state, 900, last=True)
    end.failure.CopyFrom(to_proto(failure_of(error)))
    return [event("DUMPING", 10), end]


def test_a_checkpoint_is_followed_to_its_snapshot(cli: Cli, operator: FakeOperator) -> None:
    operator.replies["Checkpoint"] = committed()
    ran = cli("checkpoint", "llm", "--cut", "freeze", "--stop", "--deadline", "1m30s")
    assert ran.code == 0, ran.err
    request = cli.request("Checkpoint")
    assert (request.cut, request.stop, request.deadline_s) == (records.CUT_FREEZE, True, 90.0)
    parking, _, end = ran.err.splitlines()
    assert parking.split()[:4] == ["10", "ms", "PARKING", "1/2"]
    assert "waiting for worker 1 on node-1 (ranks 2, 3)" in parking
    assert "because of committed" in end
    assert "llm-2" in ran.out
    assert "152" in ran.out


def test_a_checkpoint_for_programs(cli: Cli, operator: FakeOperator) -> None:
    operator.replies["Checkpoint"] = committed()
    answer = cli("checkpoint", "llm", ALLSTOP_OUTPUT="json").json
    assert answer["snapshot"]["step"] == 152
    assert answer["attempt"]["state"] == "COMMITTED"
    assert cli.request("Checkpoint").cut == records.CUT_STEP


def test_a_failed_checkpoint(cli: Cli, operator: FakeOperator) -> None:
    error = AttemptFailed(
        "criu dump failed",
        where=Where(job="llm", worker=1, node="node-1", phase="DUMP"),
        advice="close the descriptor",
        details=("(00.04) Error: Unknown shit 600 (anon_inode:[io_uring])",),
    )
    operator.replies["Checkpoint"] = failed(error, "ABORTED")
    ran = cli("checkpoint", "llm", "-o", "json")
    assert ran.code == 7
    assert ran.err.splitlines()[-4:] == [
        "error: criu dump failed",
        "  where  job llm, worker 1, node node-1, phase DUMP",
        "  next   close the descriptor",
        "  | (00.04) Error: Unknown shit 600 (anon_inode:[io_uring])",
    ]
    assert ran.json["error"]["node"] == "node-1"
    assert ran.json["action"] == "llm-2"


def test_a_second_checkpoint_is_refused(cli: Cli, operator: FakeOperator) -> None:
    operator.replies["Checkpoint"] = Busy("llm-1 runs", where=Where(job="llm"))
    ran = cli("checkpoint", "llm")
    assert ran.code == 5
    assert ran.out == ""
    assert "error: llm-1 runs" in ran.err


def test_a_restore(cli: Cli, operator: FakeOperator) -> None:
    end = event("RUNNING", 1400, last=True)
    end.restore.CopyFrom(
        records.RestoreRecord(restore="llm-r", job="llm", snapshot="llm-2", incarnation=2)
    )
    end.restore.state = records.RESTORE_STATE_RUNNING
    end.restore.plan.placements.add(worker=1, from_node="n1", to_node="n2", why="n1 is lost")
    operator.replies["Restore"] = [event("RESTORING", 600), end]
    ran = cli("restore", "llm", "--snapshot", "llm-2")
    assert ran.code == 0, ran.err
    assert cli.request("Restore").snapshot == "llm-2"
    assert "n1 is lost" in ran.out


def test_a_failed_restore(cli: Cli, operator: FakeOperator) -> None:
    operator.replies["Restore"] = failed(RestoreFailed("worker 0 did not come back"), "FAILED")
    assert cli("restore", "llm").code == 9


def test_watch_shows_how_it_ended(cli: Cli, operator: FakeOperator) -> None:
    operator.replies["Watch"] = committed()[-1:]
    assert cli("watch", "llm-2", "-o", "json").json["snapshot"]["snapshot"] == "llm-2"


def test_a_broken_stream_is_joined_again_and_nothing_begun_twice(
    cli: Cli, operator: FakeOperator
) -> None:
    operator.replies["Checkpoint"] = [*committed()[:1], ConnectionError("leader gone")]
    operator.replies["Watch"] = committed()[1:]
    ran = cli("checkpoint", "llm", "-o", "json")
    assert ran.code == 0, ran.err
    assert [name for name, _ in operator.requests] == ["Checkpoint", "Watch"]
    assert cli.request("Watch").action == "llm-2"


def test_ctrl_c_leaves_it_running_and_says_so(cli: Cli, operator: FakeOperator) -> None:
    ended = threading.Event()
    wait: Callable[[], bool] = lambda: ended.wait(RUN_TIMEOUT_S)  # noqa: E731
    operator.replies["Checkpoint"] = [*committed()[:1], wait]
    process = subprocess.Popen(
        [sys.executable, "-m", "coordinator.cli.main", "checkpoint", "llm"],
        env=cli.environment(),
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stderr is not None
        assert "PARKING" in process.stderr.readline()
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=RUN_TIMEOUT_S)
    finally:
        process.kill()
        ended.set()
    assert process.returncode == 130
    assert "llm-2 goes on: `allstop watch llm-2`, `allstop abort llm-2`" in err


@pytest.mark.parametrize("text", ["", "5 parsecs", "-3s", "0", "99999d"])
def test_a_bad_deadline(cli: Cli, text: str) -> None:
    ran = cli("checkpoint", "llm", f"--deadline={text}")
    assert ran.code == 2
    assert "--deadline" in ran.err
    assert cli.operator.requests == []


def test_deadlines_of_phases(cli: Cli, operator: FakeOperator) -> None:
    operator.replies["Checkpoint"] = committed()
    ran = cli("checkpoint", "llm", "--phase-deadline", "dump=1m", "--phase-deadline=gpu-lock=5")
    assert ran.code == 0, ran.err
    named = {(each.phase, each.deadline_s) for each in cli.request("Checkpoint").phase_deadlines}
    assert named == {(records.PHASE_DUMP, 60.0), (records.PHASE_GPU_LOCK, 5.0)}


@pytest.mark.parametrize("text", ["", "60s", "dump", "nap=60s", "dump=", "dump=-1s", "=5s"])
def test_a_bad_deadline_of_a_phase(cli: Cli, text: str) -> None:
    ran = cli("checkpoint", "llm", "--phase-deadline", text)
    assert ran.code == 2
    assert "--phase-deadline" in ran.err
    assert cli.operator.requests == []
