"""The lock drops what arrives for one worker's sockets, and nothing else on the node."""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Callable, Iterator
from contextlib import closing

import pytest

from coordinator.core.model import Endpoint
from lab import Lab
from tests.integration.criu.kit import PROGRAMS, Node, counted, until
from worker_shim.network.held import sockets_of
from worker_shim.network.port import Sockets

pytestmark = [pytest.mark.root]

SECONDS = {"deadline_s": 10.0}
ECHO = """
import socket, sys, threading
server = socket.create_server((sys.argv[1], int(sys.argv[2])))
def echo(peer):
    while data := peer.recv(100):
        peer.sendall(data)
while True:
    threading.Thread(target=echo, args=(server.accept()[0],), daemon=True).start()
"""
# Talks to the echo server once per line on stdin; prints what came back or `nothing`.
ASK = """
import socket, sys
peer = socket.create_connection((sys.argv[1], int(sys.argv[2])))
print(peer.getsockname()[1], flush=True)
peer.settimeout(float(sys.argv[3]))
for line in sys.stdin:
    try:
        peer.sendall(line.encode())
        print(peer.recv(100).decode().strip(), flush=True)
    except TimeoutError:
        print("nothing", flush=True)
"""

REACH = """
import socket, sys
try:
    socket.create_connection((sys.argv[1], int(sys.argv[2])), 0.5)
    print("open")
except TimeoutError:
    print("silent")
"""
LISTEN = """
import socket
listener = socket.socket()
listener.bind(("127.0.0.1", 7000))
listener.listen()
"""
CLOSE_FIRST = """
client = socket.create_connection(("127.0.0.1", 7000))
server, _ = listener.accept()
server.close()
client.close()
"""


@pytest.fixture
def lab(make_lab: Callable[..., Lab]) -> Lab:
    return make_lab(["n0", "n1"])


@pytest.fixture
def node(lab: Lab) -> Iterator[Node]:
    with closing(Node(lab.hosts["n0"], "criu")) as node:
        yield node


class Client:
    """One connection to the echo server."""

    def __init__(self, lab: Lab, name: str, address: str, port: int) -> None:
        argv = [sys.executable, "-c", ASK, address, str(port), "0.6"]
        pipes = {"stdin": -1, "stdout": -1, "text": True}
        self.process = lab.hosts[name].popen(argv, **pipes)
        self.port = int(self.process.stdout.readline())

    def ask(self, word: str) -> str:
        self.process.stdin.write(f"{word}\n")
        self.process.stdin.flush()
        return str(self.process.stdout.readline().strip())

    def close(self) -> None:
        self.process.kill()
        self.process.stdin.close()
        self.process.stdout.close()


def echo(lab: Lab, address: str, port: int) -> None:
    host = lab.hosts["n0"]
    host.popen([sys.executable, "-c", ECHO, address, str(port)])
    until(lambda: f":{port} " in host.run(["ss", "-tlnH"]).stdout, "listening")


@pytest.mark.parametrize("where", ["n1", "n0"])
def test_exactly_one_connection_is_silent(lab: Lab, node: Node, where: str) -> None:
    here = lab.hosts["n0"].address
    there = lab.hosts[where].address
    echo(lab, "0.0.0.0", 7000)
    locked, free = Client(lab, where, here, 7000), Client(lab, where, here, 7000)
    with closing(locked), closing(free):
        assert (locked.ask("one"), free.ask("one")) == ("one", "one")
        sockets = Sockets((Endpoint(here, 7000, there, locked.port),), ())
        node.call("network.lock", "job/0", sockets, **SECONDS)
        assert node.call("network.locked", "job/0")
        assert not node.call("network.locked", "job/1")
        assert (locked.ask("two"), free.ask("two")) == ("nothing", "two")
        node.call("network.unlock", "job/0", **SECONDS)
        node.call("network.unlock", "job/0", **SECONDS)
        assert not node.call("network.locked", "job/0")
        assert locked.ask("three").endswith("two"), "what was dropped came again, nobody was told"


def test_a_listening_port_is_silent_and_its_neighbour_is_not(lab: Lab, node: Node) -> None:
    here = lab.hosts["n0"].address
    for port in (7000, 7001):
        echo(lab, here, port)
    node.call("network.lock", "job/0", Sockets((), ((here, 7000),)), **SECONDS)

    def from_n1(port: int) -> str:
        return lab.hosts["n1"].run([sys.executable, "-c", REACH, here, str(port)]).stdout.strip()

    assert (from_n1(7000), from_n1(7001)) == ("silent", "open")
    node.call("network.lock", "job/0", Sockets((), (("0.0.0.0", 7001),)), **SECONDS)
    assert (from_n1(7000), from_n1(7001)) == ("open", "silent"), "a lock of the same name replaces"
    node.call("network.lock", "job/1", Sockets((), ((here, 7000),)), **SECONDS)
    node.call("network.unlock", "job/0", **SECONDS)
    assert (from_n1(7000), from_n1(7001)) == ("silent", "open"), "two workers, two locks"


def test_clear_takes_the_connection_and_never_the_listener(lab: Lab, node: Node) -> None:
    here = lab.hosts["n0"].address
    echo(lab, here, 7000)
    client = Client(lab, "n1", here, 7000)
    with closing(client):
        assert client.ask("one") == "one"
        there = lab.hosts["n1"].address
        ours = Endpoint(here, 7000, there, client.port)
        nobody = Endpoint(here, 7000, there, 1)  # only the listener matches
        assert node.call("network.clear", [nobody, ours], **SECONDS) == 1
        assert node.call("network.clear", [nobody, ours], **SECONDS) == 0
        assert ":7000" in lab.hosts["n0"].run(["ss", "-tlnH"]).stdout
        assert ":7000" not in lab.hosts["n0"].run(["ss", "-tanH", "state", "established"]).stdout


def test_clear_takes_what_is_left_at_a_port(lab: Lab, node: Node) -> None:
    """A listener without SO_REUSEADDR cannot bind while a TIME-WAIT socket has its port."""
    host = lab.hosts["n0"]
    host.run([sys.executable, "-c", LISTEN + CLOSE_FIRST])
    assert "TIME-WAIT" in host.run(["ss", "-tanH"]).stdout
    assert host.run([sys.executable, "-c", LISTEN], check=False).returncode != 0
    assert node.call("network.clear", [], ports=[("127.0.0.1", 7000)], **SECONDS) == 1
    host.run([sys.executable, "-c", LISTEN])


def test_sockets_of_a_tree(lab: Lab, node: Node) -> None:
    out = "/run/allstop-disk/out"
    argv = [sys.executable, str(PROGRAMS / "stream.py"), "pair", "127.0.0.1", "7000", out]
    root = node.call("launch", argv, "/run/allstop-disk/log")
    until(lambda: counted(node.here(out)) >= 500, "messages")
    echo(lab, "127.0.0.1", 7001)  # another program's
    sockets = node.call("network.sockets", node.call("look", root))
    assert sockets.listening == (("127.0.0.1", 7000),)
    one, other = sockets.established
    assert {one.local_port, one.remote_port} == {other.local_port, other.remote_port}
    assert 7000 in (one.local_port, one.remote_port)
    node.call("kill", root)


def test_ipv4_mapped_sockets_are_ipv4() -> None:
    with socket.socket(socket.AF_INET6) as listener:
        listener.bind(("::", 0))
        listener.listen()
        port = listener.getsockname()[1]
        with socket.create_connection(("127.0.0.1", port)) as client:
            accepted, _ = listener.accept()
            with accepted:
                found = sockets_of([os.getpid()])
                end = Endpoint("127.0.0.1", port, "127.0.0.1", client.getsockname()[1])
                assert end in found.established
                assert ("::", port) in found.listening
