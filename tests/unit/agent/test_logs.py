"""Reading a worker's output on its node: real files, and real processes as ranks."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from coordinator.core.logs import LogPart, LogPlace
from coordinator.core.model import RankState
from tests.unit.agent.rig import Rig
from worker_shim.agent import logs
from worker_shim.agent.logs import give_back, read
from worker_shim.agent.ports import LOG
from worker_shim.agent.worker import Worker

HERE = LogPlace(0, lines=2)


@pytest.fixture
def worker(rig: Rig) -> Worker:
    """One whose output is five lines."""
    rig.worker.directory.mkdir(parents=True, exist_ok=True)
    path(rig.worker).write_text("".join(f"line {number}\n" for number in range(5)))
    return rig.worker


def path(worker: Worker) -> Path:
    return worker.directory / LOG


def one(worker: Worker, place: LogPlace) -> LogPart:
    (part,) = read(worker, place)
    assert part.failure is None, part.failure
    return part


def after(part: LogPart, place: LogPlace = HERE) -> LogPlace:
    return replace(place, source=part.source, file=part.file, offset=part.next)


def test_the_last_lines_then_what_comes(worker: Worker) -> None:
    first = one(worker, HERE)
    assert first.data == b"line 3\nline 4\n"
    assert one(worker, after(first)).data == b""
    with path(worker).open("a") as log:
        log.write("more\nbegun")
    second = one(worker, after(first))
    assert second.data == b"more\nbegun"
    assert one(worker, after(second)).data == b""
    assert one(worker, LogPlace(0)).data == b"", "no lines: only what comes"
    assert one(worker, LogPlace(0, lines=99)).data.startswith(b"line 0\n")


def test_no_more_than_there_is_room_for(worker: Worker) -> None:
    place, heard = LogPlace(0, lines=99, room=10), b""
    for _ in range(9):
        part = one(worker, place)
        heard, place = heard + part.data, replace(after(part, place), room=10)
        assert len(part.data) <= 10
        if not part.more:
            break
    assert heard == path(worker).read_bytes()


def test_nothing_yet_is_no_error(worker: Worker) -> None:
    path(worker).unlink()
    part = one(worker, HERE)
    assert (part.data, part.note) == (b"", "nothing has been put out yet")
    path(worker).write_text("begun\n")
    assert one(worker, after(part)).data == b"begun\n"


def test_after_a_restore_it_goes_on_where_the_cut_was(worker: Worker) -> None:
    read_to_the_end = one(worker, HERE)
    cut = len("line 0\nline 1\nline 2\n")
    # what a restore does: the old content in a new file, then the worker goes on
    new = path(worker).with_name("new")
    new.write_text("line 0\nline 1\nline 2\nother 3\nother 4\nother 5\n")
    new.rename(path(worker))
    worker.restored_by, worker.log_began = "r1", {str(path(worker)): cut}
    part = one(worker, after(read_to_the_end))
    assert part.data == b"other 3\nother 4\nother 5\n"
    assert "it goes on where r1 put it back" in part.note
    # who had not read as far as the cut goes on where they were
    early = replace(HERE, source="output", file="old", offset=len("line 0\n"))
    assert one(worker, early).data.startswith(b"line 1\n")


def test_a_new_run_in_the_same_place_begins_at_its_launch(worker: Worker) -> None:
    before = one(worker, HERE)
    size = path(worker).stat().st_size
    worker.log_began = {str(path(worker)): size}
    with path(worker).open("a") as log:
        log.write("second run\n")
    moved = replace(after(before), file="another node's", offset=10 * size)
    assert one(worker, moved).data == b"second run\n"


def test_the_beginning_of_a_long_output_is_given_back(
    worker: Worker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logs, "KEPT_BYTES_MAX", 1 << 20)
    monkeypatch.setattr(logs, "KEPT_BYTES", 1 << 19)
    place = LogPlace(0, lines=1)
    first = one(worker, place)
    assert give_back(path(worker)) == 0
    with path(worker).open("a") as log:
        log.writelines(f"{number:>9}\n" for number in range(200_000))
    size = path(worker).stat().st_size
    assert give_back(path(worker)) > 1 << 20
    status = path(worker).stat()
    assert status.st_size == size, "offsets stay as they are"
    assert status.st_blocks * 512 <= (1 << 19) + 8192
    assert give_back(path(worker)) == 0
    late = one(worker, after(first, place))
    assert "given up before they were read" in late.note
    assert late.data.lstrip(b"\0")[:1] in b" 0123456789\n"
    assert b"\0" * 4096 not in late.data
    assert one(worker, place).data == b"   199999\n"
    assert give_back(path(worker).with_name("missing")) == 0


# -- ranks -----------------------------------------------------------------------------------------


@pytest.fixture
def started() -> Iterator[list[subprocess.Popen[bytes]]]:
    """Processes to end."""
    them: list[subprocess.Popen[bytes]] = []
    yield them
    for each in them:
        each.kill()
        each.wait(10)


def rank(
    worker: Worker, started: list[subprocess.Popen[bytes]], number: int, out: Path, err: Path
) -> None:
    """A process that is a rank, as torchrun would start it."""
    with out.open("ab") as stdout, err.open("ab") as stderr:
        process = subprocess.Popen(
            [sys.executable, "-c", "import time; time.sleep(60)"],
            env={**os.environ, "RANK": str(number)},
            stdin=subprocess.DEVNULL,
            stdout=stdout,
            stderr=stderr,
        )
    started.append(process)
    worker.ranks = (*worker.ranks, RankState(number, number % 2, process.pid, 1))
    deadline = time.monotonic() + 10
    while f"RANK={number}".encode() not in Path(f"/proc/{process.pid}/environ").read_bytes():
        assert time.monotonic() < deadline


def of_rank(number: int) -> LogPlace:
    return LogPlace(0, of_rank=True, rank=number, lines=10)


def test_a_rank_with_files_of_its_own(
    worker: Worker, started: list[subprocess.Popen[bytes]], tmp_path: Path
) -> None:
    out, err = tmp_path / "stdout.log", tmp_path / "stderr.log"
    out.write_text("said\n")
    err.write_text("complained\n")
    rank(worker, started, 2, out, err)
    rank(worker, started, 3, path(worker), path(worker))
    found = read(worker, of_rank(2))
    assert [(part.source, part.data) for part in found] == [
        ("stdout", b"said\n"),
        ("stderr", b"complained\n"),
    ]
    # its files are known still when it has ended
    started[0].kill()
    started[0].wait(10)
    assert [part.data for part in read(worker, of_rank(2))] == [b"said\n", b"complained\n"]


def test_a_rank_that_shares_a_file_is_picked_out_by_its_name(
    worker: Worker, started: list[subprocess.Popen[bytes]]
) -> None:
    lines = "[default0]:zero\n[default1]:one\nnobody's\n[default1]:two\n[default1]:beg"
    path(worker).write_text(lines)
    for number in (2, 3):
        rank(worker, started, number, path(worker), path(worker))
    part = one(worker, of_rank(3))
    assert part.data == b"[default1]:one\n[default1]:two\n"
    with path(worker).open("a") as log:
        log.write("un\n[default0]:three\n")
    assert one(worker, after(part, of_rank(3))).data == b"[default1]:begun\n"
    assert one(worker, replace(of_rank(3), lines=2)).data == b"[default1]:two\n[default1]:begun\n"


def test_ranks_that_nothing_tells_apart_are_refused_with_what_to_do(
    worker: Worker, started: list[subprocess.Popen[bytes]]
) -> None:
    rank(worker, started, 2, path(worker), path(worker))
    alone = one(worker, of_rank(2))
    assert alone.data.startswith(b"line 0")
    assert "rank 2 is the only one" in alone.note
    rank(worker, started, 3, path(worker), path(worker))
    (refused,) = read(worker, of_rank(3))
    assert refused.failure is not None
    assert "the 2 ranks of worker 0 write into one file" in refused.failure.what
    assert "--tee 3" in refused.failure.advice
    assert refused.failure.worker == 0


def test_a_rank_that_writes_to_no_file(
    worker: Worker, started: list[subprocess.Popen[bytes]]
) -> None:
    rank(worker, started, 0, Path(os.devnull), Path(os.devnull))
    (refused,) = read(worker, of_rank(0))
    assert refused.failure is not None
    assert "rank 0 writes to /dev/null, which is no file" in refused.failure.what


def test_a_rank_that_nobody_saw(worker: Worker) -> None:
    (gone,) = read(worker, of_rank(5))
    assert gone.failure is not None
    assert gone.failure.kind == "NotFound"
