"""examples/tcp_ring.py: two nodes of two processes, and what it says of a broken stream."""

from __future__ import annotations

import hashlib
import importlib.util
import json
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from tests.support.ports import free_port

SCRIPT = Path(__file__).resolve().parents[3] / "examples" / "tcp_ring.py"
HOSTS = "127.0.0.1,127.0.0.2"
RUN_TIMEOUT_S = 60


def go_round(tmp_path: Path, rounds: int) -> dict[str, Any]:
    """Run both nodes to their end and return what rank 0 wrote."""
    result, port = tmp_path / "ring.json", str(free_port())
    command = [sys.executable, str(SCRIPT), "--hosts", HOSTS, "--port", port]
    command += ["--rounds", str(rounds), "--result", str(result)]
    nodes = [
        subprocess.Popen([*command, "--node", str(node)], stdout=subprocess.DEVNULL)
        for node in range(2)
    ]
    try:
        assert [node.wait(RUN_TIMEOUT_S) for node in nodes] == [0, 0]
    finally:
        for node in nodes:
            node.kill()
            node.wait(10)
    answer = json.loads(result.read_text())
    assert isinstance(answer, dict)
    return answer


def undisturbed_digest(rounds: int, world_size: int = 4) -> str:
    """What the ring must end with, computed without any connection."""
    tokens = range(world_size - 1)
    states = [hashlib.sha256(b"token %d" % number).digest() for number in tokens]
    chains = [hashlib.sha256(b"rank %d" % rank) for rank in range(world_size)]
    for _ in range(rounds):
        for rank in (*range(1, world_size), 0):
            for number in tokens:
                seen = states[number] + rank.to_bytes(4, "big")
                states[number] = hashlib.sha256(seen).digest()
                chains[rank].update(states[number])
    return hashlib.sha256(b"".join(chain.digest() for chain in chains)).hexdigest()


def test_the_digest_depends_on_the_options_alone(tmp_path: Path) -> None:
    result = go_round(tmp_path, 50)
    assert result["digest"] == undisturbed_digest(50)
    assert result["digest"] != undisturbed_digest(49)
    assert result["hops"] == 50 * 4 * 3


@pytest.fixture(scope="module")
def ring() -> ModuleType:
    """The script as a module."""
    spec = importlib.util.spec_from_file_location("tcp_ring", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["tcp_ring"] = module  # its dataclass looks there
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def ends(ring: ModuleType) -> Iterator[tuple[Any, socket.socket]]:
    """A rank, and the socket that is its rank before."""
    ours, theirs = socket.socketpair()
    for end in (ours, theirs):
        end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 20)
    rank = ring.Ring.__new__(ring.Ring)
    rank.rank, rank.before = 1, ours
    with ours, theirs:
        yield rank, theirs


def sent(ring: ModuleType, number: int, hops: int) -> bytearray:
    """A token's bytes."""
    token = ring.Token(number, hops, bytes(32))
    return bytearray(ring.HEADER.pack(number, hops, token.state) + token.payload())


def test_the_right_token_is_taken(ring: ModuleType, ends: tuple[Any, socket.socket]) -> None:
    rank, before = ends
    before.sendall(sent(ring, 2, 8))
    assert rank.receive(2, 8).hops == 8


@pytest.mark.parametrize("came", [(2, 4), (0, 8), (2, 12)])  # doubled, out of turn, one lost
def test_another_token_breaks_the_ring(
    ring: ModuleType, ends: tuple[Any, socket.socket], came: tuple[int, int]
) -> None:
    rank, before = ends
    before.sendall(sent(ring, *came))
    with pytest.raises(ring.RingBroken, match="expected token 2 after 8 hops"):
        rank.receive(2, 8)


def test_an_altered_byte_breaks_the_ring(ring: ModuleType, ends: tuple[Any, socket.socket]) -> None:
    rank, before = ends
    data = sent(ring, 2, 8)
    data[-1] ^= 1
    before.sendall(data)
    with pytest.raises(ring.RingBroken, match="differs"):
        rank.receive(2, 8)


def test_a_lost_tail_breaks_the_ring(ring: ModuleType, ends: tuple[Any, socket.socket]) -> None:
    rank, before = ends
    before.sendall(sent(ring, 2, 8)[:-1])
    before.close()
    with pytest.raises(ring.RingBroken, match="has ended"):
        rank.receive(2, 8)
