"""What CRIU cannot do is named, nothing is left of the try, and the job goes on."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest

from coordinator.core.errors import DriverError
from lab import Lab
from lab.host import DISK
from tests.integration.criu.kit import PROGRAMS, Node, counted, lines, until
from tests.support.compiling import SHARED, compiled

pytestmark = [pytest.mark.root, pytest.mark.criu]

IMAGES = DISK / "images"
OUT = DISK / "out"
FILE = DISK / "file"
SECONDS = {"deadline_s": 30.0}


@pytest.fixture
def node(make_lab: Callable[..., Lab], criu_path: str) -> Iterator[Node]:
    with closing(Node(make_lab(["n0"]).hosts["n0"], criu_path)) as node:
        yield node


def launch(node: Node, program: str, *arguments: str) -> int:
    argv = [sys.executable, str(PROGRAMS / f"{program}.py"), *arguments]
    root = int(node.call("launch", argv, str(DISK / "log")))
    until(lambda: counted(node.here(OUT)) >= 5, f"{program} counts")
    return root


def save_and_kill(node: Node, root: int) -> None:
    node.call("stop", root)
    node.call("criu.dump", root, IMAGES, **SECONDS)
    node.call("kill", root)


def goes_on(node: Node, root: int) -> None:
    node.call("go_on", root)
    seen = counted(node.here(OUT))
    until(lambda: counted(node.here(OUT)) > seen + 5, "it goes on")


def test_an_io_uring_is_named_and_the_tree_goes_on(node: Node) -> None:
    root = launch(node, "odd", "io_uring", str(OUT))
    node.call("stop", root)
    with pytest.raises(DriverError, match="io_uring open, which CRIU cannot save") as caught:
        node.call("criu.dump", root, IMAGES, **SECONDS)
    assert caught.value.definite
    assert "seccomp" in caught.value.advice
    assert any("Error (" in line for line in caught.value.details), "CRIU's own words"
    assert set(node.call("states", root).values()) == {"T"}
    goes_on(node, root)


def test_a_taken_pid_is_named_and_the_next_try_works(node: Node) -> None:
    root = launch(node, "odd", "reader", "/dev/null", str(OUT))
    save_and_kill(node, root)
    sitting = node.call("launch", ["sleep", "100"], str(DISK / "log"), root)
    assert sitting == root
    with pytest.raises(DriverError, match=f"pid {root} is taken"):
        node.call("criu.restore", IMAGES, **SECONDS)
    assert node.call("states", sitting), "the one who sat there was left alone"
    node.call("kill", sitting)
    assert node.call("criu.restore", IMAGES, **SECONDS) == root
    goes_on(node, root)


def test_a_missing_file_is_named_and_the_next_try_works(node: Node) -> None:
    node.here(FILE).write_text("needed")
    root = launch(node, "odd", "reader", str(FILE), str(OUT))
    save_and_kill(node, root)
    node.here(FILE).rename(node.here(FILE).with_name("elsewhere"))
    with pytest.raises(DriverError, match="file is missing on this node"):
        node.call("criu.restore", IMAGES, **SECONDS)
    assert node.call("states", root) == {}, "nothing is left of the try, not even a zombie"
    node.here(FILE).with_name("elsewhere").rename(node.here(FILE))
    assert node.call("criu.restore", IMAGES, **SECONDS) == root
    goes_on(node, root)


def test_a_file_of_another_size_is_named(node: Node) -> None:
    node.here(FILE).write_bytes(bytes(8))
    root = launch(node, "odd", "rewriter", str(FILE), str(OUT))
    save_and_kill(node, root)
    node.here(FILE).write_bytes(bytes(9))
    with pytest.raises(DriverError, match="is 9 bytes long and was 8 at the checkpoint"):
        node.call("criu.restore", IMAGES, **SECONDS)
    assert node.call("states", root) == {}


def test_an_address_of_another_node_is_named(make_lab: Callable[..., Lab], criu_path: str) -> None:
    lab = make_lab(["n0", "n1"])
    host = lab.hosts["n0"]
    with closing(Node(host, criu_path)) as node:
        argv = [sys.executable, str(PROGRAMS / "stream.py"), "receive", host.address, "7000"]
        root = node.call("launch", [*argv, str(OUT)], str(DISK / "log"))
        until(lambda: f"{host.address}:7000" in host.run(["ss", "-tlnH"]).stdout, "listening")
        save_and_kill(node, root)
        node.call("criu.move_addresses", IMAGES, {host.address: "10.77.0.99"})
        with pytest.raises(DriverError, match="an address of the saved sockets is not on this"):
            node.call("criu.restore", IMAGES, **SECONDS)
        node.call("criu.move_addresses", IMAGES, {})
        assert node.call("criu.restore", IMAGES, **SECONDS) == root


def test_a_port_that_another_program_has_is_named(node: Node) -> None:
    root = launch(node, "stream", "pair", "127.0.0.1", "7000", str(OUT))
    sockets = node.call("network.sockets", node.call("stop", root))
    node.call("network.lock", "job/0", sockets, **SECONDS)
    node.call("criu.dump", root, IMAGES, **SECONDS)
    node.call("kill", root)
    node.call("network.clear", sockets.established, ports=sockets.listening, **SECONDS)
    listen = "import socket, time; l = socket.create_server(('127.0.0.1', 7000)); time.sleep(99)"
    node.host.popen([sys.executable, "-c", listen])
    until(lambda: ":7000" in node.host.run(["ss", "-tlnH"]).stdout, "the other program")
    with pytest.raises(DriverError, match="a port of the saved sockets is in use"):
        node.call("criu.restore", IMAGES, **SECONDS)


def test_damaged_images_are_named_before_anything_is_forked(node: Node) -> None:
    root = launch(node, "odd", "reader", "/dev/null", str(OUT))
    save_and_kill(node, root)
    pstree = node.here(IMAGES / "pstree.img")
    pstree.write_bytes(pstree.read_bytes()[:-3])
    with pytest.raises(DriverError, match="no CRIU image that allstop understands"):
        node.call("criu.restore", IMAGES, **SECONDS)


def test_a_dump_that_is_given_up_leaves_working_sockets(node: Node) -> None:
    root = launch(node, "stream", "pair", "127.0.0.1", "7000", str(OUT), "400")
    tree = node.call("stop", root)
    node.call("cancel_dump", root, IMAGES)
    assert set(node.call("states", root).values()) == {"T"}
    goes_on(node, root)
    assert node.call("end", root, tree.pids[1]) == 0
    assert lines(node.here(OUT))[-1].startswith("done")


@pytest.mark.parametrize("deadline_s", [0.0, 0.02, 0.05, 0.1, 0.2])
def test_a_dump_out_of_time_leaves_working_sockets(node: Node, deadline_s: float) -> None:
    root = launch(node, "stream", "pair", "127.0.0.1", "7000", str(OUT), "400")
    tree = node.call("stop", root)
    with pytest.raises(DriverError, match="did not end within"):
        node.call("criu.dump", root, IMAGES, deadline_s=deadline_s)
    assert set(node.call("states", root).values()) == {"T"}
    goes_on(node, root)
    assert node.call("end", root, tree.pids[1]) == 0


def test_a_restore_out_of_time_leaves_nothing_and_the_next_try_works(node: Node) -> None:
    root = launch(node, "stream", "pair", "127.0.0.1", "7000", str(OUT), "200")
    tree = node.call("stop", root)
    sockets = node.call("network.sockets", tree)
    node.call("network.lock", "job/0", sockets, **SECONDS)
    node.call("criu.dump", root, IMAGES, **SECONDS)
    node.call("kill", root)
    for deadline_s in (0.01, 0.03, 0.06):
        node.call("network.clear", sockets.established, ports=sockets.listening, **SECONDS)
        with pytest.raises(DriverError, match="did not end within") as caught:
            node.call("criu.restore", IMAGES, deadline_s=deadline_s)
        assert not caught.value.definite
        for pid in tree.pids:
            assert node.call("states", pid) == {}
    node.call("network.clear", sockets.established, ports=sockets.listening, **SECONDS)
    assert node.call("criu.restore", IMAGES, **SECONDS) == root
    node.call("network.unlock", "job/0", **SECONDS)
    goes_on(node, root)


def test_the_directory_must_be_empty(node: Node, tmp_path: Path) -> None:
    node.here(IMAGES).mkdir()
    node.here(IMAGES / "old").touch()
    with pytest.raises(DriverError, match="is not empty"):
        node.call("criu.dump", 1, IMAGES, **SECONDS)


@pytest.mark.cc
@pytest.mark.parametrize("last", [True, False])
def test_a_dump_that_a_plugin_took_part_in_is_none(
    make_lab: Callable[..., Lab], criu_path: str, tmp_path: Path, last: bool
) -> None:
    """Where plugins lie that CRIU would take, ours is the last word; and if not, that is seen."""
    compiled(tmp_path / "cuda_plugin.so", PROGRAMS / "cuda_plugin.c", *SHARED)
    wrapper = tmp_path / "criu"
    options = f'"$@" --libdir {tmp_path}' if last else f'dump --libdir {tmp_path} "$@"'
    shift = "" if last else "shift; "
    wrapper.write_text(
        f'#!/bin/sh\ncase "$1" in dump) {shift}exec {criu_path} {options};; esac\n'
        f'exec {criu_path} "$@"\n'
    )
    wrapper.chmod(0o755)
    with closing(Node(make_lab(["n0"]).hosts["n0"], str(wrapper))) as node:
        root = launch(node, "odd", "reader", "/dev/null", str(OUT))
        node.call("stop", root)
        if last:
            with pytest.raises(DriverError, match="run with plugins: cuda_plugin"):
                node.call("criu.dump", root, IMAGES, **SECONDS)
        else:
            node.call("criu.dump", root, IMAGES, **SECONDS)
        goes_on(node, root)
