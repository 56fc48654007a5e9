"""A stream between two nodes is cut in mid-flight and goes on between other addresses."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable
from contextlib import closing

import pytest

from lab import Lab
from lab.host import DISK
from tests.integration.criu.kit import PROGRAMS, Node, counted, lines, until
from worker_shim.criu.addresses import read_sockets
from worker_shim.files.keeping import Keeping

pytestmark = [pytest.mark.root, pytest.mark.criu]

PORT = "7000"
IMAGES = DISK / "images"
OUT = DISK / "out"
SECONDS = {"deadline_s": 30.0}


def launch(node: Node, *arguments: str) -> int:
    argv = [sys.executable, str(PROGRAMS / "stream.py"), *arguments]
    return int(node.call("launch", argv, str(DISK / "log")))


def save(node: Node, root: int) -> None:
    """What a shim does at DUMP, once every tree is stopped and locked."""
    tree = node.call("look", root)
    node.files = node.call(
        "files.cut", tree, IMAGES / "files", keeping=Keeping(copy_limit_bytes=1 << 20)
    )
    node.call("criu.dump", root, IMAGES / "criu", **SECONDS)


def freeze(node: Node, root: int) -> None:
    tree = node.call("stop", root)
    node.call("network.lock", "job/w", node.call("network.sockets", tree), **SECONDS)


def bring(node: Node, source: Node, moves: dict[str, str], **options: object) -> None:
    """FETCH and CLEAR on a node that never had the worker."""
    shutil.copytree(source.here(IMAGES), node.here(IMAGES))
    node.call("files.roll_back", source.files, IMAGES / "files", label="s1")
    node.call("criu.move_addresses", IMAGES / "criu", moves, **options)
    node.call("network.lock", "job/w", node.call("criu.sockets", IMAGES / "criu"), **SECONDS)


@pytest.mark.parametrize("family", [4, 6])
def test_the_stream_goes_on_elsewhere(
    make_lab: Callable[..., Lab], criu_path: str, family: int
) -> None:
    lab = make_lab(["n0", "n1", "s0", "s1"])
    address = {name: host.address for name, host in lab.hosts.items()}
    if family == 6:
        for number, (name, host) in enumerate(lab.hosts.items(), start=1):
            address[name] = f"fd00:77::{number}"
            host.run(["ip", "address", "add", f"{address[name]}/64", "dev", "eth0", "nodad"])
    nodes = {name: Node(host, criu_path) for name, host in lab.hosts.items()}
    old, new = [nodes["n0"], nodes["n1"]], [nodes["s0"], nodes["s1"]]
    with closing(old[0]), closing(old[1]), closing(new[0]), closing(new[1]):
        receiver = launch(old[0], "receive", address["n0"], PORT, str(OUT))
        sender = launch(old[1], "send", address["n0"], PORT, str(OUT))
        until(lambda: counted(old[0].here(OUT)) >= 3000, "messages")

        freeze(old[0], receiver)
        freeze(old[1], sender)
        queued = old[1].host.run(["ss", "-tnH", "dport", "=", f":{PORT}"]).stdout.split()
        assert int(queued[2]) > 0, "nothing was in flight, so this test would prove little"
        save(old[0], receiver)
        save(old[1], sender)
        at_cut = counted(old[0].here(OUT))
        lab.hosts["n0"].power_off()
        lab.hosts["n1"].power_off()

        moves = {address["n0"]: address["s0"], address["n1"]: address["s1"]}
        for node, source in zip(new, old, strict=True):
            bring(node, source, moves)
        assert new[0].call("criu.restore", IMAGES / "criu", **SECONDS) == receiver
        assert new[1].call("criu.restore", IMAGES / "criu", **SECONDS) == sender
        for node, root in zip(new, (receiver, sender), strict=True):
            node.call("network.unlock", "job/w", **SECONDS)
            node.call("go_on", root)
        until(lambda: counted(new[0].here(OUT)) >= at_cut + 3000, "messages after the move")

        assert new[1].call("end", sender) == 0
        assert new[0].call("wait", receiver) == 0
        sent, done = lines(new[1].here(OUT)), lines(new[0].here(OUT))
        assert any(line.endswith(f"at {address['s0']}") for line in sent), "getpeername moved"
        assert done[-1].split() == ["done", sent[-1].split()[1]]
        assert not any("WRONG" in line for line in done)


def test_a_connection_that_left_the_job_comes_back_closed(
    make_lab: Callable[..., Lab], criu_path: str
) -> None:
    lab = make_lab(["n0", "n1", "s0"])
    address = {name: host.address for name, host in lab.hosts.items()}
    nodes = {name: Node(host, criu_path) for name, host in lab.hosts.items()}
    n0, n1, s0 = nodes["n0"], nodes["n1"], nodes["s0"]
    with closing(n0), closing(n1), closing(s0):
        outside = "import socket; l = socket.create_server(('', 9000)); c, _ = l.accept()\n"
        outside += "while c.recv(1 << 16): pass"
        lab.control.popen([sys.executable, "-c", outside])
        receiver = launch(n0, "receive", "0.0.0.0", PORT, str(OUT))
        sender = launch(n1, "send", address["n0"], PORT, str(OUT), lab.control.address, "9000")
        until(lambda: counted(n0.here(OUT)) >= 2000, "messages")
        freeze(n0, receiver)
        freeze(n1, sender)
        save(n0, receiver)
        save(n1, sender)
        at_cut = counted(n0.here(OUT))
        before = n0.call("criu.sockets", IMAGES / "criu")
        lab.hosts["n1"].power_off()

        # The receiver stays where it is, the sender moves; both images get the same map.
        n0.call("kill", receiver)
        n0.call("network.clear", before.established, ports=before.listening, **SECONDS)
        n0.call("files.roll_back", n0.files, IMAGES / "files", label="s1")
        moves = {address["n1"]: address["s0"]}
        assert n0.call("criu.move_addresses", IMAGES / "criu", moves) >= 1
        after = n0.call("criu.sockets", IMAGES / "criu")
        n0.call("network.lock", "job/w", after, **SECONDS)
        images = n1.here(IMAGES) / "criu"
        left = [e for e in read_sockets(images).established if e.remote_port == 9000]
        bring(s0, n1, moves, close=left)
        assert len(s0.call("criu.sockets", IMAGES / "criu").established) == 1
        n0.call("criu.restore", IMAGES / "criu", **SECONDS)
        s0.call("criu.restore", IMAGES / "criu", **SECONDS)
        for node, root in ((n0, receiver), (s0, sender)):
            node.call("network.unlock", "job/w", **SECONDS)
            node.call("go_on", root)
        until(lambda: counted(n0.here(OUT)) >= at_cut + 2000, "messages after the move")
        until(
            lambda: any("outside closed" in line for line in lines(s0.here(OUT))),
            "the sender notices that its outside connection is closed",
        )
        assert s0.call("end", sender) == 0
        assert n0.call("wait", receiver) == 0
        assert lines(n0.here(OUT))[-1].split()[1] == lines(s0.here(OUT))[-1].split()[1]
