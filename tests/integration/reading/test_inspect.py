"""`allstop inspect` on real images in a real store, asked of a fake service by the real command."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from allstop.v1 import operator_pb2, records_pb2

from coordinator.api.words import bytes_text
from coordinator.core.model import Snapshot
from tests.integration.reading.kit import Dumped
from tests.integration.reading.stored import fetched, left_in, put, root_of, shown, until_fetched
from tests.unit.cli.conftest import Cli, FakeOperator
from worker_shim.images.chunk_store import ChunkStore
from worker_shim.images.opening import open_store

pytestmark = [pytest.mark.root, pytest.mark.criu]

SNAPSHOT = "llm-1"
BIG_BYTES = 1 << 28  # takes longer to fetch than a signal takes to come


@pytest.fixture
def store(tmp_path: Path) -> ChunkStore:
    return open_store(str(tmp_path / "store"))


@pytest.fixture
def snapshot(store: ChunkStore, steps: tuple[Dumped, Dumped], operator: FakeOperator) -> Snapshot:
    """The first of the two dumps as a snapshot that the service knows."""
    made = put(store, steps[0], SNAPSHOT)
    operator.replies["Show"] = shown(made)
    return made


@pytest.fixture
def scratch(cli: Cli, store: ChunkStore, tmp_path: Path) -> Path:
    """Where the command fetches to."""
    place = tmp_path / "scratch"
    place.mkdir()
    cli.env |= {"TMPDIR": str(place), "ALLSTOP_STORE": str(root_of(store))}
    return place


def test_everything_is_shown(
    cli: Cli, scratch: Path, snapshot: Snapshot, steps: tuple[Dumped, Dumped]
) -> None:
    ran = cli("inspect", SNAPSHOT)
    assert ran.code == 0, ran.err
    assert ran.err == f"llm-1, worker 0: fetching {bytes_text(snapshot.image_bytes)}\n"
    root, child = steps[0].root, steps[0].child
    lines = {line.split()[0]: line for line in ran.out.splitlines() if line.split()}
    assert lines[str(root)].split()[-9:-7] == ["0", "7"], "rank and step"
    assert f"{steps[0].directory}  " in lines[str(root)]
    assert lines[str(child)].endswith("yes"), "it had a GPU"
    assert lines[str(child)].split()[1:3] == ["[second", "process]"], "as it called itself"
    for text in (
        "node-0 (10.0.0.2)", "shared memory", "tcp", "listening", "[::1]:", "memfd", "eventfd",
        "(deleted)", "torch 2.13.0", "1 NVIDIA H200", "580.95.05 (13.0)", "rebuild",
        f"GPU state of processes {child}", "GPU 0 NVIDIA H200 GPU-11111111-2222: 5.24 MB held",
        str(steps[0].directory / "log"),
    ):  # fmt: skip
        assert text in ran.out, text
    assert "AREAS OF" not in ran.out
    assert f"AREAS OF {root}" in cli("inspect", SNAPSHOT, "--areas").out
    assert left_in(scratch) == []


def test_json_has_all_of_it(
    cli: Cli, scratch: Path, snapshot: Snapshot, steps: tuple[Dumped, Dumped]
) -> None:
    [worker] = cli("inspect", SNAPSHOT, "-o", "json").json
    assert [each["process"]["pid"] for each in worker["processes"]] == [
        steps[0].root, steps[0].child,
    ]  # fmt: skip
    first, second = worker["processes"]
    assert first["rank"]["rank"] == 0
    assert (first["gpu"], second["gpu"]) == (False, True)
    assert first["memory"]["command"] == list(steps[0].seen[steps[0].root].command)
    assert len(first["memory"]["areas"]) > 50
    assert {each["file"]["kind"] for each in first["descriptors"]} >= {"socket", "pipe", "memfd"}
    assert worker["record"]["versions"] == ["torch 2.13.0", "nccl 2.30.7"]
    assert worker["kept"][0]["path"] == str(steps[0].directory / "log")
    assert [each["dumped_bytes"] for each in worker["segments"]] == [4096, 4096]


def test_images_alone_are_enough(
    cli: Cli, operator: FakeOperator, snapshot: Snapshot, store: ChunkStore, tmp_path: Path
) -> None:
    place = fetched(store, snapshot, tmp_path / "copy" / "0")
    for folder in (place / "images", place.parent):
        [worker] = cli("inspect", "--images", str(folder), "-o", "json").json
        assert worker["record"] is None
        assert len(worker["processes"]) == 2
    assert operator.requests == []
    known = cli("inspect", SNAPSHOT, "--images", str(place), "-o", "json").json
    assert known[0]["record"]["node"] == "node-0"


def test_what_cannot_be_is_told(
    cli: Cli, scratch: Path, snapshot: Snapshot, store: ChunkStore, tmp_path: Path
) -> None:
    assert cli("inspect").code == 2
    no_worker = cli("inspect", SNAPSHOT, "--worker", "3")
    assert (no_worker.code, "there is no worker 3" in no_worker.err) == (2, True)
    empty = cli("inspect", "--images", str(scratch))
    assert (empty.code, "has no images of workers" in empty.err) == (2, True)
    nowhere = cli("inspect", SNAPSHOT, "--store", str(tmp_path / "typo"))
    assert (nowhere.code, "is no image store" in nowhere.err) == (14, True)
    assert not (tmp_path / "typo").exists(), "a store is not made by looking"
    other = open_store(str(tmp_path / "other"))
    elsewhere = cli("inspect", SNAPSHOT, "--store", str(root_of(other)))
    assert elsewhere.code == 10
    assert f"the images are in another store, {store.identity}" in elsewhere.err
    assert left_in(scratch) == []


def test_an_attempt_is_no_snapshot(cli: Cli, scratch: Path, operator: FakeOperator) -> None:
    attempt = records_pb2.AttemptRecord(
        attempt="llm-2",
        job="llm",
        state=records_pb2.ATTEMPT_STATE_ABORTED,
        cut=records_pb2.CUT_STEP,
    )
    operator.replies["Show"] = operator_pb2.ShowReply(attempt=attempt)
    ran = cli("inspect", "llm-2")
    assert (ran.code, "llm-2 is no committed snapshot" in ran.err) == (4, True)


def test_damage_in_the_store_is_found_and_named(
    cli: Cli, scratch: Path, snapshot: Snapshot, store: ChunkStore
) -> None:
    packs = root_of(store) / "llm" / SNAPSHOT / "packs"
    pack = next(packs.iterdir())
    data = bytearray(pack.read_bytes())
    data[0] ^= 1
    pack.chmod(0o600)
    pack.write_bytes(data)
    ran = cli("inspect", SNAPSHOT)
    assert ran.code == 10
    assert f"of pack {pack.name}" in ran.err or pack.name in ran.err
    assert "worker 0" in ran.err
    assert left_in(scratch) == []


def test_damage_in_images_alone_is_named(
    cli: Cli, steps: tuple[Dumped, Dumped], tmp_path: Path
) -> None:
    images = shutil.copytree(steps[0].images, tmp_path / "copy")
    (images / "pstree.img").write_bytes((images / "pstree.img").read_bytes()[:-1])
    ran = cli("inspect", "--images", str(images))
    assert (ran.code, "pstree.img is no CRIU image" in ran.err) == (10, True)


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_one_leaves_nothing(
    cli: Cli,
    scratch: Path,
    steps: tuple[Dumped, Dumped],
    store: ChunkStore,
    operator: FakeOperator,
    how: signal.Signals,
) -> None:
    big = steps[0].images / "big"
    big.write_bytes(os.urandom(BIG_BYTES))
    try:
        operator.replies["Show"] = shown(put(store, steps[0], SNAPSHOT))
    finally:
        big.unlink()
    running = subprocess.Popen(
        [sys.executable, "-m", "coordinator.cli.main", "inspect", SNAPSHOT],
        env=cli.environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        until_fetched(scratch)
        running.send_signal(how)
        _, err = running.communicate(timeout=20)
    finally:
        running.kill()
        running.wait(10)
    assert (running.returncode, err.splitlines()[-1]) == (130, "interrupted")
    assert left_in(scratch) == []
