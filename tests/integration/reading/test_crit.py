"""CRIU's own reader, crit, finds in the same images what ours find."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import ROOT
from tests.integration.reading.kit import Dumped
from worker_shim.criu.descriptors import HeldFile, access_of, read_descriptors, read_files
from worker_shim.criu.image_file import PAGEMAP_MAGIC, ImageFile, read_image, write_image
from worker_shim.criu.memory import read_memory
from worker_shim.criu.pages import for_old_readers, read_page_table
from worker_shim.criu.processes import read_processes

PYCRIU = ROOT / ".tools" / "checkpointctl" / "sid" / "usr" / "lib" / "python3" / "dist-packages"
pytestmark = [
    pytest.mark.root,
    pytest.mark.criu,
    pytest.mark.checkpointctl,
    pytest.mark.skipif(not PYCRIU.exists(), reason="needs crit: make test-tools"),
]
DECODE = """
import json, pathlib, sys
import pycriu
found = {}
for path in pathlib.Path(sys.argv[1]).glob("*.img"):
    if not path.name.startswith("pages-"):
        with path.open("rb") as image:
            found[path.name] = pycriu.images.load(image, no_payload=True)["entries"]
json.dump(found, sys.stdout)
"""


def decoded(images: Path) -> dict[str, list[Any]]:
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", DECODE, str(images)],
        env={**os.environ, "PYTHONPATH": str(PYCRIU)}, capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return dict(json.loads(done.stdout))


@pytest.fixture(scope="module")
def crit(dumped: Dumped) -> dict[str, list[Any]]:
    return decoded(dumped.images)


def test_processes(dumped: Dumped, crit: dict[str, list[Any]]) -> None:
    processes = read_processes(dumped.images)
    assert [(one.pid, one.parent, one.group, one.session) for one in processes] == [
        (one["pid"], one["ppid"], one["pgid"], one["sid"]) for one in crit["pstree.img"]
    ]
    for one in processes:
        [core] = crit[f"core-{one.pid}.img"]
        assert one.name == core["tc"]["comm"]
        if one.alive:
            [ids], [place] = crit[f"ids-{one.pid}.img"], crit[f"fs-{one.pid}.img"]
            assert (one.files, one.cwd, one.root) == (
                ids["files_id"], place["cwd_id"], place["root_id"],
            )  # fmt: skip


def test_files_and_descriptors(dumped: Dumped, crit: dict[str, list[Any]]) -> None:
    files = read_files(dumped.images)
    assert sorted(files) == sorted(one["id"] for one in crit["files.img"])
    for entry in crit["files.img"]:
        check_file(files[entry["id"]], entry)
    for process in read_processes(dumped.images):
        if process.alive:
            ours = read_descriptors(dumped.images, process.files, files)
            theirs = crit[f"fdinfo-{process.files}.img"]
            assert [(one.number, one.file.number) for one in ours] == sorted(
                (one["fd"], one["id"]) for one in theirs
            )


def check_file(file: HeldFile, entry: dict[str, Any]) -> None:
    if regular := entry.get("reg"):
        assert (file.name, file.position) == (regular["name"], regular["pos"])
        assert file.size_bytes == regular.get("size", -1)
        assert file.access == access_of(regular["flags"])
    elif socket := entry.get("isk") or entry.get("usk"):
        assert file.socket is not None
        assert (file.socket.inode, file.socket.peer) == (socket["ino"], socket.get("peer", 0))
        if "src_port" in socket:
            assert file.socket.local.endswith(f":{socket['src_port']}")
    else:
        assert file.kind == entry["type"].lower().replace("eventpoll", "epoll")


def test_memory(dumped: Dumped, crit: dict[str, list[Any]]) -> None:
    files = read_files(dumped.images)
    for pid in (dumped.root, dumped.child):
        [theirs] = crit[f"mm-{pid}.img"]
        ours = read_memory(dumped.images, pid, files)
        assert [(one.start, one.end, one.offset) for one in ours.areas] == [
            (one["start"], one["end"], one["pgoff"]) for one in theirs["vmas"]
        ]
        runs = [
            (one.address, one.size_bytes) for one in read_page_table(dumped.images, str(pid)).runs
        ]
        _, *pages = crit[f"pagemap-{pid}.img"]
        assert runs == [(one["vaddr"], one["nr_pages"] * 4096) for one in pages]


def test_a_pagemap_for_old_readers(dumped: Dumped, tmp_path: Path) -> None:
    """Every count stands in both fields, and nothing else has changed."""
    name = f"pagemap-{dumped.root}.img"
    (tmp_path / name).write_bytes(for_old_readers(dumped.images / name))
    _, *theirs = decoded(tmp_path)[name]
    _, *before = decoded(dumped.images)[name]
    assert [one | {"compat_nr_pages": 0} for one in theirs] == before
    assert all(one["compat_nr_pages"] == one["nr_pages"] for one in theirs)
    image = read_image(dumped.images / name, PAGEMAP_MAGIC)
    write_image(tmp_path / "again", ImageFile(image.magics, image.entries))
    assert (tmp_path / "again").read_bytes() == (dumped.images / name).read_bytes()
