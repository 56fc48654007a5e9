"""A DataLoader with persistent workers: deleted shared memory, queues, semaphores, threads."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable
from contextlib import closing

import pytest

from lab import Lab
from lab.host import DISK
from tests.integration.criu.kit import PROGRAMS, Node, counted, lines, until
from worker_shim.files.keeping import Keeping

IMAGES = DISK / "images"
OUT = DISK / "out"
SECONDS = {"deadline_s": 60.0}


@pytest.mark.root
@pytest.mark.criu
@pytest.mark.torch
@pytest.mark.slow
@pytest.mark.timeout(180)
def test_dataloader_workers_come_back_on_another_node(
    make_lab: Callable[..., Lab], criu_path: str
) -> None:
    lab = make_lab(["n0", "s0"])
    node, spare = (Node(lab.hosts[name], criu_path) for name in ("n0", "s0"))
    with closing(node), closing(spare):
        argv = [sys.executable, str(PROGRAMS / "loader.py"), str(OUT)]
        root = node.call("launch", argv, str(DISK / "log"))
        until(lambda: counted(node.here(OUT)) >= 100, "batches", deadline_s=60)
        tree = node.call("stop", root)
        assert len(tree.pids) >= 3
        files = node.call(
            "files.cut", tree, IMAGES / "files", keeping=Keeping(copy_limit_bytes=1 << 20)
        )
        stats = node.call("criu.dump", root, IMAGES / "criu", **SECONDS)
        assert stats.image_bytes > 100 << 20
        at_cut = counted(node.here(OUT))
        lab.hosts["n0"].power_off()

        shutil.copytree(node.here(IMAGES), spare.here(IMAGES))
        spare.call("files.roll_back", files, IMAGES / "files", label="s1")
        spare.call("criu.restore", IMAGES / "criu", **SECONDS)
        spare.call("go_on", root)
        until(lambda: counted(spare.here(OUT)) >= at_cut + 100, "batches after the move")
        assert not any("WRONG" in line for line in lines(spare.here(OUT)))
        print(stats, spare.times)
