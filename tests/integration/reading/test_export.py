"""Exported tars are read by the real checkpointctl, and hold the very images."""

from __future__ import annotations

import json
import re
import subprocess
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from coordinator.core.model import Snapshot
from tests.conftest import tool
from tests.integration.reading.kit import Dumped
from tests.integration.reading.stored import GPU, left_in, put, root_of, shown
from tests.unit.cli.conftest import Cli, FakeOperator
from worker_shim.images.opening import open_store
from worker_shim.reading.worker import read_worker

pytestmark = [pytest.mark.root, pytest.mark.criu]

Checkpointctl = Callable[..., str]
NAME = "llm-1-worker-0.tar"
LABELS = "allstop.", "org.criu.checkpoint."


@pytest.fixture
def checkpointctl() -> Checkpointctl:
    """`checkpointctl("show", tar)` gives what it said; it must be content."""
    program = tool("checkpointctl")
    assert program is not None

    def run(*arguments: object) -> str:
        line = [program, *map(str, arguments)]
        done = subprocess.run(line, capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, f"{line}:\n{done.stdout}{done.stderr}"
        return done.stdout

    return run


@pytest.fixture
def snapshot(
    cli: Cli, operator: FakeOperator, steps: tuple[Dumped, Dumped], tmp_path: Path
) -> Snapshot:
    store = open_store(str(tmp_path / "store"))
    made = put(store, steps[0], "llm-1")
    operator.replies["Show"] = shown(made)
    (tmp_path / "scratch").mkdir()
    cli.env |= {"ALLSTOP_STORE": str(root_of(store)), "TMPDIR": str(tmp_path / "scratch")}
    return made


def exported(cli: Cli, tmp_path: Path) -> Path:
    ran = cli("export", "llm-1", "--to", str(tmp_path / "to"))
    assert ran.code == 0, ran.err
    assert NAME in ran.out
    assert left_in(tmp_path / "scratch") == []
    assert left_in(tmp_path / "to") == [NAME]
    return tmp_path / "to" / NAME


@pytest.mark.checkpointctl
def test_checkpointctl_reads_it(
    cli: Cli,
    snapshot: Snapshot,
    steps: tuple[Dumped, Dumped],
    tmp_path: Path,
    checkpointctl: Checkpointctl,
) -> None:
    tar = exported(cli, tmp_path)
    row = checkpointctl("show", tar).splitlines()[-1].split()
    assert (row[0], row[1], row[3], row[5]) == ("llm-0", "none", "criu", "Podman")
    assert row[4] == "2026-11-30T00:53:20Z"
    told: list[dict[str, Any]] = json.loads(
        checkpointctl("inspect", "--all", "--format", "json", tar)
    )
    [one] = told
    view = read_worker(steps[0].images)
    assert one["checkpoint_size"]["memory_pages_size"] == view.dumped_bytes
    seen = steps[0].seen
    root, child = one["process_tree"], one["process_tree"]["children"][0]
    for process, pid in ((root, steps[0].root), (child, steps[0].child)):
        assert process["pid"] == pid
        assert process["command"] == seen[pid].status["Name"]
        assert process["cmdline"].split() == list(seen[pid].command)
    for found in one["sockets"]:
        assert len(found["open_sockets"]) == 8
    tree = checkpointctl("inspect", "--all", tar)
    assert f"allstop.gpu.0.uuid: {GPU.uuid}" in tree
    assert f"allstop.gpu.pids: {steps[0].child}" in tree
    assert "allstop.step: 7" in tree
    assert "org.criu.checkpoint.engine.name: allstop" in tree
    assert re.search(r"Memory pages size: \d+\.\d MiB", tree)
    assert str(steps[0].directory / "log") in tree
    rows = [line.split() for line in checkpointctl("memparse", tar).splitlines()]
    for each in view.processes:
        own = sum(area.dumped_bytes for area in each.memory.areas if not area.segment)
        [row] = [row for row in rows if row[:1] == [str(each.process.pid)]]
        assert row[-4:-2] == [f"{own / (1 << 20):.1f}", "MiB"]


def test_what_is_in_it(
    cli: Cli, snapshot: Snapshot, steps: tuple[Dumped, Dumped], tmp_path: Path
) -> None:
    path = exported(cli, tmp_path)
    assert path.stat().st_mode & 0o777 == 0o600, "memory has secrets"
    with tarfile.open(path) as tar:
        names = tar.getnames()
        contents = {member.name: tar.extractfile(member) for member in tar if member.isfile()}
        read = {name: file.read() for name, file in contents.items() if file is not None}
    assert names[:2] == ["config.dump", "spec.dump"]
    assert {"stats-dump", "dump.log", "checkpoint"} <= set(names)
    for image in steps[0].images.iterdir():
        top = image.name in ("stats-dump", "dump.log")
        content = read[image.name if top else f"checkpoint/{image.name}"]
        if not image.name.startswith("pagemap-"):
            assert content == image.read_bytes()
    assert read["allstop/files/file-0"] == b"kept words\n"
    assert json.loads(read["allstop/snapshot.json"])["workers"][0]["node"] == "node-0"
    assert json.loads(read["allstop/manifest.json"])["job"] == "llm"
    spec = json.loads(read["spec.dump"])
    assert spec["process"]["args"] == ["torchrun", "many.py"]
    assert "env" not in spec["process"]
    assert all(name.startswith(LABELS) for name in spec["annotations"] if name[:3] != "io.")
    assert spec["annotations"]["allstop.rank.1"] == f"pid {steps[0].child}, step 7"


def test_equal_snapshots_give_equal_tars(cli: Cli, snapshot: Snapshot, tmp_path: Path) -> None:
    first = exported(cli, tmp_path).read_bytes()
    assert exported(cli, tmp_path).read_bytes() == first


def test_no_room_leaves_no_tar(cli: Cli, snapshot: Snapshot, tmp_path: Path) -> None:
    (tmp_path / "to").mkdir()
    (tmp_path / "to" / f"{NAME}.partial").mkdir()
    ran = cli("export", "llm-1", "--to", str(tmp_path / "to"))
    assert (ran.code, "cannot write" in ran.err) == (14, True)
    assert not (tmp_path / "to" / NAME).exists()
    assert left_in(tmp_path / "scratch") == []
