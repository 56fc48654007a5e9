"""A tree with a TCP pair is saved while it runs on, and put back in place."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import closing

import pytest

from lab import Lab
from lab.host import DISK
from tests.integration.criu.kit import PROGRAMS, Node, counted, lines, until

pytestmark = [pytest.mark.root, pytest.mark.criu]

LOCK = "job/0"
IMAGES = DISK / "images"
OUT = DISK / "out"
LOG = DISK / "log"
SECONDS = {"deadline_s": 30.0}


@pytest.fixture
def node(make_lab: Callable[..., Lab], criu_path: str) -> Iterator[Node]:
    with closing(Node(make_lab(["n0"]).hosts["n0"], criu_path)) as node:
        yield node


def launch(node: Node, *arguments: str) -> int:
    argv = [sys.executable, str(PROGRAMS / "stream.py"), *arguments]
    return int(node.call("launch", argv, str(LOG)))


def test_goes_on_after_the_dump_and_comes_back(node: Node) -> None:
    out = node.here(OUT)
    root = launch(node, "pair", "127.0.0.1", "7000", str(OUT))
    until(lambda: counted(out) >= 2000, "messages")

    tree = node.call("stop", root)
    sockets = node.call("network.sockets", tree)
    assert len(sockets.established) == 2
    assert sockets.listening == (("127.0.0.1", 7000),)
    node.call("network.lock", LOCK, sockets, **SECONDS)
    files = node.call("files.cut", tree, IMAGES / "files", copy_limit_bytes=1 << 20)
    stats = node.call("criu.dump", root, IMAGES / "criu", **SECONDS)
    assert stats.pages_written > 100
    assert stats.image_bytes > stats.pages_written * 4096
    assert set(node.call("states", root).values()) == {"T"}
    facts = node.call("criu.facts", IMAGES / "criu")
    assert facts.pids == tree.pids
    assert node.call("criu.sockets", IMAGES / "criu") == sockets
    at_cut = counted(out)

    node.call("network.unlock", LOCK, **SECONDS)
    node.call("go_on", root)
    until(lambda: counted(out) >= at_cut + 2000, "the job goes on")

    node.call("network.lock", LOCK, sockets, **SECONDS)
    node.call("kill", root)
    cleared = node.call("network.clear", sockets.established, ports=sockets.listening, **SECONDS)
    assert cleared >= 1
    kept = node.call("files.roll_back", files, IMAGES / "files", label="s1")
    assert kept == (f"{OUT}.after-s1",)
    assert counted(out) == at_cut

    assert node.call("criu.restore", IMAGES / "criu", **SECONDS) == root
    assert set(node.call("states", root).values()) == {"T"}
    node.call("network.unlock", LOCK, **SECONDS)
    assert not node.call("network.locked", LOCK)
    node.call("go_on", root)
    until(lambda: counted(out) >= at_cut + 2000, "the restored job goes on")
    assert node.call("end", root, tree.pids[1]) == 0
    done = [line for line in lines(out) if line.startswith(("done", "sent"))]
    assert len(done) == 2
    assert done[0].split()[1] == done[1].split()[1]
    print(node.times)
