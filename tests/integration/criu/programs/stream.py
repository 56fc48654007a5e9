"""A stream of numbered messages over TCP, sent faster than it is read, until SIGTERM.

    stream.py send HOST PORT OUT [OUTSIDE_HOST OUTSIDE_PORT]
    stream.py receive HOST PORT OUT        (binds HOST)
    stream.py pair HOST PORT OUT [MIB]     (both, the sender a child of the receiver; holds
                                            so much memory besides)

The receiver checks that no number is lost, doubled or out of order, appends the count to OUT from
time to time, and at the end `done COUNT`. The sender writes `sent COUNT` to OUT. With an outside
address the sender keeps a connection there too and notes `outside closed` when that ends.
"""

import os
import signal
import socket
import sys
import time
from typing import TextIO

MESSAGE_BYTES = 512
NOTE_EVERY = 500
END = (1 << 64) - 1
stopping = False


def note(out: TextIO, line: str) -> None:
    out.write(line + "\n")
    out.flush()


def message(number: int) -> bytes:
    return number.to_bytes(8, "big") * (MESSAGE_BYTES // 8)


def connect(host: str, port: int) -> socket.socket:
    for _ in range(1000):
        try:
            return socket.create_connection((host, port))
        except OSError:
            time.sleep(0.01)
    raise SystemExit(f"cannot connect to {host}:{port}")


def send(host: str, port: int, out: TextIO, outside: tuple[str, int] | None) -> None:
    def stop(*_: object) -> None:
        global stopping
        stopping = True

    signal.signal(signal.SIGTERM, stop)
    peer = connect(host, port)
    other = connect(*outside) if outside else None
    note(out, f"connected {peer.getsockname()} {peer.getpeername()}")
    count = 0
    while not stopping:
        peer.sendall(message(count))
        count += 1
        if count % NOTE_EVERY == 0:
            note(out, f"{count} at {peer.getpeername()[0]}")
            other = beat(other, out)
    peer.sendall(message(END))
    note(out, f"sent {count}")
    assert peer.recv(1) == b""


def beat(other: socket.socket | None, out: TextIO) -> socket.socket | None:
    if other is None:
        return None
    try:
        other.sendall(b"beat")
        other.setblocking(False)
        try:
            if other.recv(1) == b"":
                raise BrokenPipeError("end of file")
        except BlockingIOError:
            pass
        other.setblocking(True)
    except OSError as error:
        note(out, f"outside closed: {error}")
        return None
    return other


def receive(host: str, port: int, out: TextIO) -> None:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family)
    listener.bind((host, port))
    listener.listen()
    if len(sys.argv) > 1 and sys.argv[1] == "pair" and os.fork() == 0:
        listener.close()
        send("127.0.0.1", port, out, None)
        os._exit(0)
    peer, _ = listener.accept()
    reader = peer.makefile("rb")
    expected = 0
    while True:
        got = reader.read(MESSAGE_BYTES)
        if got == message(END):
            break
        if got != message(expected):
            note(out, f"WRONG at {expected}: {got[:16]!r}")
            raise SystemExit(1)
        expected += 1
        if expected % NOTE_EVERY == 0:
            note(out, f"{expected}")
            time.sleep(0.002)
    note(out, f"done {expected}")


if __name__ == "__main__":
    role, host, port = sys.argv[1], sys.argv[2], int(sys.argv[3])
    with open(sys.argv[4], "a") as out:
        if role == "send":
            rest = sys.argv[5:]
            send(host, port, out, (rest[0], int(rest[1])) if rest else None)
        else:
            ballast = os.urandom(int(sys.argv[5]) << 20) if len(sys.argv) > 5 else b""
            receive(host, port, out)
