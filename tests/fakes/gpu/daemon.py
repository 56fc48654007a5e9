"""The daemon of a node: it has the memory of its devices. What a client had goes with its end.

    daemon.py PLACE '{"GPU-…": BYTES, …}'

Makes PLACE/nvidia0 and so on, listens on PLACE/daemon, says so by a line, ends with its input.
A client is given a connection that CRIU cannot dump and the preflight, which names unix sockets to
processes outside, does not see: as with a device. It is made in a network namespace of the daemon's
(without root in the node's). The client names its device; then each request is answered by a result
and a value:

    ("write", NAME, BYTES)    ("read", NAME)    ("all",)    ("drop",)    ("free",)
"""

from __future__ import annotations

import ctypes
import json
import socket
import sys
import threading
from contextlib import suppress
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

CLONE_NEWNET = 0x40000000  # <linux/sched.h>
SUCCESS, OUT_OF_MEMORY, NO_DEVICE, NOT_FOUND = 0, 2, 100, 500  # CUresult


class Memory:
    """Of all devices: how much of each is free."""

    def __init__(self, sizes: dict[str, int]) -> None:
        self.free = sizes
        self._turn = threading.Lock()

    def take(self, device: str, size: int) -> bool:
        """Whether there was room for so many bytes more; a negative number gives some back."""
        with self._turn:
            if size > self.free[device]:
                return False
            self.free[device] -= size
            return True


class Client:
    """One process on one device."""

    def __init__(self, memory: Memory, connection: Connection[Any, Any]) -> None:
        self._memory, self._connection = memory, connection
        self._device = ""
        self._mine: dict[str, bytes] = {}

    def serve(self) -> None:
        """Until it closes its device."""
        try:
            self._device = self._connection.recv()
            known = self._device in self._memory.free
            devices = list(self._memory.free)
            self._connection.send((SUCCESS if known else NO_DEVICE, devices))
            while known:
                verb, *rest = self._connection.recv()
                self._connection.send(getattr(self, verb)(*rest))
        except (EOFError, ConnectionError):
            pass
        finally:
            self.drop()
            self._connection.close()

    def write(self, name: str, data: bytes) -> tuple[int, None]:
        if not self._memory.take(self._device, len(data) - len(self._mine.get(name, b""))):
            return OUT_OF_MEMORY, None
        self._mine[name] = data
        return SUCCESS, None

    def read(self, name: str) -> tuple[int, bytes]:
        return (SUCCESS if name in self._mine else NOT_FOUND), self._mine.get(name, b"")

    def all(self) -> tuple[int, dict[str, bytes]]:
        return SUCCESS, self._mine

    def drop(self) -> tuple[int, None]:
        while self._mine:
            _, data = self._mine.popitem()
            self._memory.take(self._device, -len(data))
        return SUCCESS, None

    def free(self) -> tuple[int, int]:
        return SUCCESS, self._memory.free[self._device]


def main(place: Path, sizes: dict[str, int]) -> None:
    """Until the input ends."""
    place.mkdir(parents=True, exist_ok=True)
    for number in range(len(sizes)):
        (place / f"nvidia{number}").touch()
    (place / "daemon").unlink(missing_ok=True)
    ctypes.CDLL(None).unshare(CLONE_NEWNET)
    memory = Memory(sizes)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(place / "daemon"))
        listener.listen()
        threading.Thread(target=accept, args=(listener, memory), daemon=True).start()
        print("listens", flush=True)
        sys.stdin.read()


def accept(listener: socket.socket, memory: Memory) -> None:
    """Serve each client in a thread of its own."""
    while True:
        ours, theirs = socket.socketpair()
        caller, _ = listener.accept()
        with caller, theirs, suppress(OSError):  # a client may be killed at any moment
            socket.send_fds(caller, [b"-"], [theirs.fileno()])
        client = Client(memory, Connection(ours.detach()))
        threading.Thread(target=client.serve, daemon=True).start()


if __name__ == "__main__":
    main(Path(sys.argv[1]), json.loads(sys.argv[2]))
