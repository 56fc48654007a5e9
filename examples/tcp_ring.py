"""Tokens go round a ring of processes over plain TCP; a lost, doubled or altered byte ends it.

    python examples/tcp_ring.py --hosts HOST-A,HOST-B --node 0 --result ring.json     # on HOST-A
    python examples/tcp_ring.py --hosts HOST-A,HOST-B --node 1                        # on HOST-B

Standard library only, no training loop and so no step: its connections are its only channel. Each
token carries its hop number and data drawn from its own history; whoever receives it checks both
and keeps a chain of hashes over all it saw. Rank 0 writes the digest of all chains, which depends
on the options alone.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import multiprocessing
import socket
import struct
import sys
import time
from dataclasses import dataclass
from pathlib import Path

HEADER = struct.Struct("!IQ32s")  # token, hops made, state of its history
PAYLOAD_BYTES = 192 * 1024  # more than a socket's first buffer, so that a token is often half sent
CONNECT_DEADLINE_S = 60.0


class RingBroken(Exception):
    """A token came that is not the one that had to come next."""


@dataclass
class Token:
    """What is sent: a header, then PAYLOAD_BYTES drawn from `state`."""

    number: int
    hops: int
    state: bytes

    def payload(self) -> bytes:
        """The bytes that belong to this state."""
        return hashlib.shake_128(self.state).digest(PAYLOAD_BYTES)

    def passed(self, rank: int) -> Token:
        """The token as `rank` passes it on."""
        state = hashlib.sha256(self.state + struct.pack("!I", rank)).digest()
        return Token(self.number, self.hops + 1, state)


class Ring:
    """One rank's two connections: from the rank before it, and to the rank after it."""

    def __init__(self, rank: int, places: list[tuple[str, int]]) -> None:
        """Listen, connect to the next rank, and wait for the one before."""
        with socket.create_server(places[rank]) as server:
            self.after = connect(places[(rank + 1) % len(places)])
            self.before, _ = server.accept()
        self.rank = rank

    def send(self, token: Token) -> None:
        """Pass a token on."""
        self.after.sendall(HEADER.pack(token.number, token.hops, token.state) + token.payload())

    def receive(self, number: int, hops: int) -> Token:
        """Take the next token, which must be this one after so many hops."""
        token = Token(*HEADER.unpack(self.receive_bytes(HEADER.size)))
        if (token.number, token.hops) != (number, hops):
            raise RingBroken(
                f"rank {self.rank}: token {token.number} after {token.hops} hops came, "
                f"expected token {number} after {hops} hops"
            )
        if self.receive_bytes(PAYLOAD_BYTES) != token.payload():
            raise RingBroken(f"rank {self.rank}: data of token {number} after {hops} hops differs")
        return token

    def receive_bytes(self, size: int) -> bytes:
        """Read exactly so many bytes."""
        data = bytearray()
        while len(data) < size:
            part = self.before.recv(size - len(data))
            if not part:
                raise RingBroken(f"rank {self.rank}: the connection from before it has ended")
            data += part
        return bytes(data)


def connect(place: tuple[str, int]) -> socket.socket:
    """Connect to a rank that may not be listening yet."""
    deadline = time.monotonic() + CONNECT_DEADLINE_S
    while True:
        try:
            return socket.create_connection(place)
        except ConnectionRefusedError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.05)


def run_rank(rank: int, options: argparse.Namespace, places: list[tuple[str, int]]) -> None:
    """Pass every token round the ring `rounds` times, then gather the chains of all ranks."""
    ring = Ring(rank, places)
    world_size = len(places)
    tokens = max(1, world_size - 1)  # one rank always has its hands free, so nobody waits for ever
    chain = hashlib.sha256(f"rank {rank}".encode())
    if rank == 0:
        for number in range(tokens):
            ring.send(Token(number, 0, hashlib.sha256(f"token {number}".encode()).digest()))
    for turn in range(1, options.rounds + 1):
        for number in range(tokens):
            hops = (turn - 1) * world_size + (rank - 1) % world_size
            token = ring.receive(number, hops).passed(rank)
            chain.update(token.state)
            if rank != 0 or turn < options.rounds:
                ring.send(token)
        if rank == 0 and turn % options.log_every == 0:
            print(f"round {turn} chain {chain.hexdigest()[:16]}", flush=True)

    gathered = chain.digest()
    if rank != 0:
        gathered = ring.receive_bytes(32 * rank) + gathered
    ring.after.sendall(gathered)
    if rank == 0:
        report(options, ring.receive_bytes(32 * world_size), world_size, tokens)


def report(options: argparse.Namespace, chains: bytes, world_size: int, tokens: int) -> None:
    """Print and write what the whole ring saw."""
    result = {
        "digest": hashlib.sha256(chains).hexdigest(),
        "rounds": options.rounds,
        "hops": options.rounds * world_size * tokens,
        "world_size": world_size,
    }
    print(f"digest {result['digest']}", flush=True)
    if options.result:
        options.result.write_text(json.dumps(result) + "\n")


def parse_options() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description="a token ring over TCP")
    parser.add_argument("--hosts", required=True, help="addresses of all nodes, with commas")
    parser.add_argument("--node", type=int, required=True, help="which of the hosts this is")
    parser.add_argument("--ranks-per-node", type=int, default=2)
    parser.add_argument("--port", type=int, default=7700, help="of the first rank")
    parser.add_argument("--rounds", type=int, default=2000)
    parser.add_argument("--log-every", type=int, default=100, help="in rounds")
    parser.add_argument("--result", type=Path, help="rank 0 writes its result here, as JSON")
    return parser.parse_args()


def main() -> int:
    """Run this node's ranks and return 0 when all of them ended well."""
    options = parse_options()
    hosts, per_node = options.hosts.split(","), options.ranks_per_node
    places = [
        (host, options.port + node * per_node + local)
        for node, host in enumerate(hosts)
        for local in range(per_node)
    ]
    if len(places) < 2:
        sys.exit("a ring needs at least two ranks")
    first = options.node * per_node
    fork = multiprocessing.get_context("fork")
    ranks = [
        fork.Process(target=run_rank, args=(rank, options, places), daemon=True)
        for rank in range(first, first + per_node)
    ]
    for process in ranks:
        process.start()
    for process in ranks:
        process.join()
    return max(abs(process.exitcode or 0) for process in ranks)


if __name__ == "__main__":
    sys.exit(main())
