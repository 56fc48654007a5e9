"""CRIU itself takes pagemaps as an export has them."""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import closing

import pytest

from lab import Lab
from lab.host import DISK
from tests.integration.criu.kit import PROGRAMS, Node, counted, until
from worker_shim.criu.pages import for_old_readers

pytestmark = [pytest.mark.root, pytest.mark.criu]

SECONDS = {"deadline_s": 30.0}
LOCK = "reading/0"


def test_a_tree_comes_back_from_pagemaps_that_count_twice(
    make_lab: Callable[..., Lab], criu_path: str
) -> None:
    out = DISK / "out"
    argv = [sys.executable, str(PROGRAMS / "stream.py"), "pair", "127.0.0.1", "7000", str(out)]
    with closing(Node(make_lab(["n0"]).hosts["n0"], criu_path)) as node:
        root = int(node.call("launch", argv, str(DISK / "log")))
        until(lambda: counted(node.here(out)) >= 100, "messages")
        sockets = node.call("network.sockets", node.call("stop", root))
        node.call("network.lock", LOCK, sockets, **SECONDS)
        node.call("criu.dump", root, DISK / "images", **SECONDS)
        at_cut = counted(node.here(out))
        node.call("kill", root)
        node.call("network.clear", sockets.established, ports=sockets.listening, **SECONDS)
        changed = 0
        for path in node.here(DISK / "images").glob("pagemap-*.img"):
            content = for_old_readers(path)
            changed += content != path.read_bytes()
            path.write_bytes(content)
        assert changed >= 2
        assert node.call("criu.restore", DISK / "images", **SECONDS) == root
        node.call("network.unlock", LOCK, **SECONDS)
        node.call("go_on", root)
        until(lambda: counted(node.here(out)) >= at_cut + 100, "the restored job goes on")
