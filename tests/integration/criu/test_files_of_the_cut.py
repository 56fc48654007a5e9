"""What a job has open for writing is part of the cut: contents, tails, semaphores, shared pages."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from lab import Lab
from lab.host import DISK
from tests.integration.criu.kit import PROGRAMS, Node, counted, lines, until
from worker_shim.files.keeping import Keeping

pytestmark = [pytest.mark.root, pytest.mark.criu]

IMAGES = DISK / "images"
OUT = DISK / "out"
FILE = DISK / "file"
SECONDS = {"deadline_s": 30.0}


@pytest.fixture
def nodes(make_lab: Callable[..., Lab], criu_path: str) -> Iterator[tuple[Node, Node]]:
    lab = make_lab(["n0", "s0"])
    with (
        closing(Node(lab.hosts["n0"], criu_path)) as node,
        closing(Node(lab.hosts["s0"], criu_path)) as spare,
    ):
        yield node, spare


def launch(node: Node, *arguments: str) -> int:
    argv = [sys.executable, str(PROGRAMS / "odd.py"), *arguments]
    root = int(node.call("launch", argv, str(DISK / "log")))
    until(lambda: counted(node.here(OUT)) >= 20, "it counts")
    return root


def save(node: Node, root: int) -> int:
    """DUMP, then let it go on a while and end it; return the count at the cut."""
    tree = node.call("stop", root)
    node.files = node.call(
        "files.cut", tree, IMAGES / "files", keeping=Keeping(copy_limit_bytes=1 << 20)
    )
    node.call("criu.dump", root, IMAGES / "criu", **SECONDS)
    at_cut = counted(node.here(OUT))
    node.call("go_on", root)
    until(lambda: counted(node.here(OUT)) >= at_cut + 20, "it goes on")
    node.call("kill", root)
    return at_cut


def restore(node: Node, source: Node, root: int, at_cut: int) -> None:
    if node is not source:
        shutil.copytree(source.here(IMAGES), node.here(IMAGES))
    node.call("files.roll_back", source.files, IMAGES / "files", label="s1")
    assert counted(node.here(OUT)) == at_cut
    node.call("criu.restore", IMAGES / "criu", **SECONDS)
    node.call("go_on", root)
    until(lambda: counted(node.here(OUT)) >= at_cut + 20, "the restored one goes on")
    assert not any("WRONG" in line for line in lines(node.here(OUT)))


def restored_again(node: Node, root: int) -> None:
    """A second snapshot, of the restored tree."""
    node.host.run(["mv", str(IMAGES), str(DISK / "first")])
    restore(node, node, root, save(node, root))


@pytest.mark.parametrize("program", ["rewriter", "mapper"])
@pytest.mark.parametrize("elsewhere", [False, True])
def test_a_file_that_is_rewritten_in_place(
    nodes: tuple[Node, Node], program: str, elsewhere: bool
) -> None:
    node, spare = nodes
    node.here(FILE).write_bytes(bytes(8))
    root = launch(node, program, str(FILE), str(OUT))
    at_cut = save(node, root)
    kept = [(file.path, file.role) for file in node.files if file.role != "directory"]
    assert kept == [
        (str(FILE), "data"),
        (str(DISK / "log"), "log"),
        (str(OUT), "data"),
    ]
    target = spare if elsewhere else node
    restore(target, node, root, at_cut)
    if not elsewhere:
        newer = node.here(FILE).with_name("file.after-s1").read_bytes()
        assert int.from_bytes(newer, "big") >= at_cut + 19
        tail = lines(node.here(OUT).with_name("out.after-s1"))
        assert tail[0] == str(at_cut + 1)


@pytest.mark.parametrize("elsewhere", [False, True])
def test_directories_sockets_and_fifos_that_are_gone_come_back(
    nodes: tuple[Node, Node], elsewhere: bool
) -> None:
    """What a program kept in a temporary directory that it, or a clean-up, has removed since."""
    node, spare = nodes
    place = DISK / "pymp-1"
    root = launch(node, "places", str(place), str(OUT))
    at_cut = save(node, root)
    shutil.rmtree(node.here(place))
    target = spare if elsewhere else node
    restore(target, node, root, at_cut)
    modes = {name: target.here(place / name).stat().st_mode for name in ("work", "socket", "fifo")}
    assert modes == {"work": 0o40750, "socket": 0o40700, "fifo": 0o10600}
    assert target.here(place / "socket" / "listener").is_socket()


@pytest.mark.parametrize("elsewhere", [False, True])
def test_spawned_semaphores_come_back_also_on_another_node(
    nodes: tuple[Node, Node], elsewhere: bool
) -> None:
    """CRIU's link_remap files, which it takes away itself at the end of the dump."""
    node, spare = nodes
    root = launch(node, "semaphores", str(OUT))
    at_cut = save(node, root)
    names = node.host.run(["ls", "-A", "/dev/shm"]).stdout.split()
    assert not any("link_remap" in name for name in names), "CRIU left them; nothing to prove here"
    target = spare if elsewhere else node
    restore(target, node, root, at_cut)
    restored_again(target, root)
    there = target.host.run(["ls", "-A", "/dev/shm"]).stdout.split()
    assert {name for name in names if name.startswith("sem.")} <= set(there)
    assert not any("link_remap" in name or "allstop" in name for name in there)


def test_trees_with_spawned_semaphores_are_saved_and_put_back_at_once(
    nodes: tuple[Node, Node],
) -> None:
    """CRIU numbers its link_remap files from 1 in every run: two would meet in /dev/shm."""
    node, spare = nodes
    outs = [DISK / f"out.{number}" for number in range(3)]
    trees: dict[int, Path] = {}
    files: dict[int, Any] = {}
    for out in outs:
        argv = [sys.executable, str(PROGRAMS / "odd.py"), "semaphores", str(out)]
        root = node.call("launch", argv, str(DISK / "log"), 1000 + 100 * len(trees))
        trees[root] = IMAGES / str(root) / "criu"
    until(lambda: all(counted(node.here(out)) >= 20 for out in outs), "they count")
    for root in trees:
        tree = node.call("stop", root)
        into = IMAGES / str(root) / "files"
        keeping = Keeping(copy_limit_bytes=1 << 20)
        files[root] = node.call("files.cut", tree, into, keeping=keeping)
    node.call("dump_all", trees, **SECONDS)
    at_cut = {out: counted(node.here(out)) for out in outs}
    shutil.copytree(node.here(IMAGES), spare.here(IMAGES))
    for root in trees:
        spare.call("files.roll_back", files[root], IMAGES / str(root) / "files", label="s1")
    spare.call("restore_all", list(trees.values()), **SECONDS)
    for root in trees:
        spare.call("go_on", root)
    until(
        lambda: all(counted(spare.here(out)) >= n + 20 for out, n in at_cut.items()), "they go on"
    )
