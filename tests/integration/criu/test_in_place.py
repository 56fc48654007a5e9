"""A tree with a TCP pair is saved while it runs on, and put back in place."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import closing

import pytest

from lab import Lab
from lab.host import DISK
from tests.integration.criu.kit import PROGRAMS, Node, counted, lines, until
from worker_shim.files.keeping import Keeping

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


def there_and_back(node: Node, root: int, label: str) -> None:
    """Save it, let it go on, kill it, put it back, let it go on; every check on the way."""
    images, out = DISK / label, node.here(OUT)
    tree = node.call("stop", root)
    sockets = node.call("network.sockets", tree)
    assert len(sockets.established) == 2
    assert sockets.listening == (("127.0.0.1", 7000),)
    node.call("network.lock", LOCK, sockets, **SECONDS)
    files = node.call(
        "files.cut", tree, images / "files", keeping=Keeping(copy_limit_bytes=1 << 20)
    )
    stats = node.call("criu.dump", root, images / "criu", **SECONDS)
    assert stats.pages_written > 100
    assert stats.image_bytes > stats.pages_written * 4096
    assert set(node.call("states", root).values()) == {"T"}
    assert node.call("criu.facts", images / "criu").pids == tree.pids
    assert node.call("criu.sockets", images / "criu") == sockets
    at_cut = counted(out)

    node.call("network.unlock", LOCK, **SECONDS)
    node.call("go_on", root)
    until(lambda: counted(out) >= at_cut + 2000, "the job goes on")

    node.call("network.lock", LOCK, sockets, **SECONDS)
    node.call("kill", root)
    cleared = node.call("network.clear", sockets.established, ports=sockets.listening, **SECONDS)
    assert cleared >= 1
    kept = node.call("files.roll_back", files, images / "files", label=label)
    assert [put.aside for put in kept][:1] == [f"{OUT}.after-{label}"]
    assert counted(out) == at_cut

    assert node.call("criu.restore", images / "criu", **SECONDS) == root
    assert set(node.call("states", root).values()) == {"T"}
    node.call("network.unlock", LOCK, **SECONDS)
    assert not node.call("network.locked", LOCK)
    node.call("go_on", root)
    until(lambda: counted(out) >= at_cut + 2000, "the restored job goes on")


def test_goes_on_after_the_dump_and_comes_back(node: Node) -> None:
    """Twice: a restored tree lives in a time namespace of its own and must be as good as new."""
    out = node.here(OUT)
    root = launch(node, "pair", "127.0.0.1", "7000", str(OUT))
    until(lambda: counted(out) >= 2000, "messages")
    sender = node.call("look", root).pids[1]
    for label in ("s1", "s2"):
        there_and_back(node, root, label)
    assert node.call("end", root, sender) == 0
    done = [line for line in lines(out) if line.startswith(("done", "sent"))]
    assert len(done) == 2
    assert done[0].split()[1] == done[1].split()[1]
    print(node.times)
