"""Durations, sizes, the board of phases, and the command line as a whole."""

from __future__ import annotations

import resource
import subprocess
import sys
from dataclasses import replace
from io import StringIO

import pytest
from click.testing import CliRunner
from rich.console import Console

from coordinator.api.board import Board
from coordinator.api.values import ActionEvent, Awaited
from coordinator.api.words import age_text, bytes_text, duration_text
from coordinator.cli.durations import parse_duration
from coordinator.cli.exits import EXIT_CODES, kinds_by_exit_code
from coordinator.cli.main import VERBS, allstop, main
from coordinator.cli.output import Output, coordinator_socket
from coordinator.cli.progress import Bars
from coordinator.core.errors import BadRequest, all_kinds

from .conftest import Cli

HELP_MS_MAX = 300


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("500ms", 0.5), ("60s", 60.0), ("2m", 120.0), ("1h30m", 5400.0), ("1.5 s", 1.5), ("7", 7.0)],
)
def test_durations_are_read(text: str, seconds: float) -> None:
    assert parse_duration(text) == seconds


@pytest.mark.parametrize("text", ["", "s", "5 parsecs", "1s and more", "-1s", "0s", "nan", "400d"])
def test_what_is_no_duration(text: str) -> None:
    with pytest.raises(BadRequest):
        parse_duration(text)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.0384, "38 ms"), (0.9996, "1.0 s"), (4.16, "4.2 s"), (59.97, "1 m 0 s"),
        (200, "3 m 20 s"),
        (3599.6, "1 h 0 m"), (18_720, "5 h 12 m"), (788_400, "9 d 3 h"), (-1, "0 ms"),
    ],
)  # fmt: skip
def test_durations_are_written(seconds: float, text: str) -> None:
    assert duration_text(seconds) == text


@pytest.mark.parametrize(
    ("size", "text"),
    [(0, "0 B"), (999, "999 B"), (1_000, "1 kB"), (582e6, "582 MB"), (1.64e9, "1.64 GB"),
     (999_999, "1 MB"), (5e16, "50000 TB")],
)  # fmt: skip
def test_sizes_are_written(size: float, text: str) -> None:
    assert bytes_text(size) == text


def test_ages() -> None:
    assert age_text(0) == "-"
    assert age_text(100, now_unix_s=160) == "1 m 0 s"
    assert age_text(100, now_unix_s=90) == "0 ms"  # clocks of two machines differ


def happened(state: str, elapsed_ms: int, awaited: int = 0, **more: object) -> ActionEvent:
    fields: dict[str, object] = {
        "done_bytes": 0, "total_bytes": 0, "reason": "", "last": False, "failure": None,
        "attempt": None, "snapshot": None, "restore": None,
    }  # fmt: skip
    waited_for = tuple(Awaited(i, f"node-{i}", tuple(range(i * 9)), 5) for i in range(awaited))
    fields.update(more)
    return ActionEvent(
        action="a", elapsed_ms=elapsed_ms, state=state, awaited=waited_for, expected=6, **fields  # type: ignore[arg-type]
    )  # fmt: skip


def test_the_board_has_one_row_per_phase_and_names_who_is_awaited() -> None:
    board = Board()
    board.update(happened("HOLDING", 0, awaited=6))
    row = board.update(happened("HOLDING", 8, awaited=2))
    assert (row.done, row.expected) == (4, 6)
    assert row.detail() == (
        "waiting for worker 0 on node-0; "
        "worker 1 on node-1 (ranks 0, 1, 2, 3, 4, 5, 6, 7 and 1 more)"
    )
    row = board.update(happened("PERSISTING", 20, done_bytes=10**6, total_bytes=4 * 10**6))
    assert row.share == 0.25
    assert row.detail() == "1 MB of 4 MB"
    board.update(happened("ABORTED", 50, reason="worker 1 left"))
    assert [(one.state, one.started_ms, one.ended_ms) for one in board.rows] == [
        ("HOLDING", 0, 20),
        ("PERSISTING", 20, 50),
        ("ABORTED", 50, 50),
    ]


def test_many_awaited_workers_are_counted() -> None:
    row = Board().update(happened("DUMPING", 0, awaited=6))
    assert row.awaited[-1] == "2 more workers"


def test_a_thousand_awaited_workers_are_counted_and_not_all_sent() -> None:
    event = happened("DUMPING", 0, awaited=6)
    row = Board().update(replace(event, expected=1_024, unnamed=1_000))
    assert row.done == 18
    assert row.awaited[-1] == "1002 more answers"


def test_a_worker_that_owes_two_answers_is_named_once() -> None:
    event = happened("PERSISTING", 0, awaited=2)
    row = Board().update(replace(event, awaited=event.awaited * 2))
    assert (row.done, row.expected) == (2, 6)
    assert row.detail().count("node-0") == 1


def test_bars_run_on_between_events() -> None:
    now_s = 100.0
    bars = Bars(Console(width=120), clock=lambda: now_s)
    bars.update(happened("DUMPING", 500, awaited=1))
    now_s = 102.0
    console = Console(width=120, record=True, file=StringIO())
    console.print(bars.view())
    text = console.export_text()
    assert "2.0 s" in text
    assert "waiting for worker 0 on node-0" in text
    assert "5/6" in text


def test_every_error_has_a_documented_exit_code() -> None:
    assert set(kinds_by_exit_code()) <= set(EXIT_CODES)
    assert sum(map(len, kinds_by_exit_code().values())) == len(all_kinds())


def test_help_names_every_verb_and_exit_code() -> None:
    text = CliRunner().invoke(allstop, ["--help"], obj=Output()).output
    for verb in VERBS:
        assert f"\n  {verb} " in text
    for code in EXIT_CODES:
        assert f"\n  {code} " in text


def test_help_is_fast(cli: Cli) -> None:
    """Measured as processor time: other work on the machine does not count."""
    best_ms = 1e9
    for _ in range(3):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        assert cli("--help").code == 0
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        took_s = after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime
        best_ms = min(best_ms, took_s * 1000)
    assert best_ms < HELP_MS_MAX


def test_help_loads_none_of_the_big_libraries(cli: Cli) -> None:
    look = (
        "import sys; from coordinator.cli.main import main; main(['--help'])\n"
        "sys.exit(any(name in sys.modules for name in ('grpc', 'google.protobuf', 'rich')))"
    )
    done = subprocess.run(
        [sys.executable, "-c", look],
        env=cli.environment(),
        stdout=subprocess.DEVNULL,
        timeout=30,
        check=False,
    )
    assert done.returncode == 0


def test_nobody_answers(cli: Cli) -> None:
    ran = cli("jobs", "--coordinator", "127.0.0.1:9", "-o", "json")
    assert ran.code == 11
    assert "127.0.0.1:9" in ran.json["error"]["what"]


def test_the_coordinator_may_be_named_before_or_after_the_verb(cli: Cli) -> None:
    output = Output()
    for line in (["--coordinator", "a:1,b:2", "watch", "--help"],):
        CliRunner().invoke(allstop, line, obj=output)
    assert output.addresses == ("a:1", "b:2")


def test_without_a_name_the_own_socket_comes_first(
    monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path_factory.mktemp("state")))
    assert Output().addresses == ("127.0.0.1:7411",)
    coordinator_socket().parent.mkdir()
    coordinator_socket().touch()
    assert Output().addresses == (f"unix:{coordinator_socket()}", "127.0.0.1:7411")


def test_an_unknown_verb(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["checkpiont", "llm"]) == 2
    assert "checkpiont" in capsys.readouterr().err


def test_a_defect_is_called_one(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(**_: object) -> None:
        raise ZeroDivisionError("planted")

    monkeypatch.setattr(allstop, "main", broken)
    assert main([]) == 70
    err = capsys.readouterr().err
    assert "error: unexpected ZeroDivisionError: planted" in err
    assert "Traceback" in err
