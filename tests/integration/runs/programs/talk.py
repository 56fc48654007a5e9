"""Two workers that talk over TCP: to each other, to themselves, and to a program outside the job.

    talk.py WORKER HOSTS OUTSIDE SHARED

Every round they exchange a number. What they see is written to SHARED/<what>.<WORKER>.
"""

import os
import socket
import struct
import sys
import time

PEER_PORT, OWN_PORT = 7700, 7701
ROUND_S = 0.02
CONNECT_S = 60.0
NUMBER = struct.Struct("!Q")
GOODBYE = b"this is all"


def connect(host: str, port: int) -> socket.socket:
    """Connect to somebody who may not be listening yet."""
    deadline = time.monotonic() + CONNECT_S
    while True:
        try:
            return socket.create_connection((host, port))
        except OSError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.05)


class Talker:
    """One worker and its connections."""

    def __init__(self, worker: int, hosts: list[str], outside: str, shared: str) -> None:
        self.worker, self.shared = worker, shared
        host, port = outside.split(":")
        self.outside: socket.socket | None = connect(host, int(port))
        with socket.create_server((hosts[worker], OWN_PORT)) as server:
            self.mine = connect(hosts[worker], OWN_PORT)
            self.mine_too, _ = server.accept()
        if worker == 0:
            with socket.create_server(("0.0.0.0", PEER_PORT)) as server:
                self.peer, _ = server.accept()
                last, _ = server.accept()
            last.sendall(GOODBYE)
            last.close()
        else:
            self.peer = connect(hosts[0], PEER_PORT)
            self.ended_by_peer = connect(hosts[0], PEER_PORT)

    def run(self) -> None:
        """Talk until SHARED/end is there."""
        at = 0
        while not os.path.exists(f"{self.shared}/end"):
            at += 1
            for here, there in ((self.peer, self.peer), (self.mine, self.mine_too)):
                here.sendall(NUMBER.pack(at))
                got = NUMBER.unpack(receive(there, NUMBER.size))[0]
                if got != at:
                    sys.exit(f"worker {self.worker} is at {at} and heard {got}")
            self.look_outside()
            self.write("round", str(at))
            time.sleep(ROUND_S)
        if self.worker == 1:
            self.write("goodbye", receive_all(self.ended_by_peer).decode())

    def look_outside(self) -> None:
        """Say something to the outside, and say how that ended."""
        if self.outside is None:
            return
        try:
            self.outside.sendall(b".")
            self.outside.settimeout(0.0)
            told = "it closed" if self.outside.recv(1) == b"" else "it spoke"
        except BlockingIOError:
            self.outside.settimeout(None)
            return
        except OSError as error:
            told = type(error).__name__
        self.write("outside", told)
        self.outside.close()
        self.outside = None

    def write(self, what: str, text: str) -> None:
        """Tell the test; the file is whole or not there."""
        temporary = f"{self.shared}/.{what}.{self.worker}"
        with open(temporary, "w") as file:
            file.write(text)
        os.replace(temporary, f"{self.shared}/{what}.{self.worker}")


def receive(peer: socket.socket, count: int) -> bytes:
    """Exactly so many bytes."""
    data = b""
    while len(data) < count:
        part = peer.recv(count - len(data))
        if not part:
            sys.exit("a connection of the job has ended")
        data += part
    return data


def receive_all(peer: socket.socket) -> bytes:
    """Everything up to the end, which must come."""
    peer.settimeout(10.0)
    data = b""
    while part := peer.recv(1 << 16):
        data += part
    return data


def main() -> None:
    """See the module's text."""
    worker, hosts, outside, shared = sys.argv[1:]
    Talker(int(worker), hosts.split(","), outside, shared).run()


if __name__ == "__main__":
    main()
