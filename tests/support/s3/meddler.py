"""Somebody between a store and its server: slows down, cuts off, loses answers, answers itself."""

from __future__ import annotations

import contextlib
import socket
import socketserver
import threading
from dataclasses import dataclass
from types import TracebackType
from typing import Self

PIECE_BYTES = 64 * 1024
S3_ERROR = (
    '<?xml version="1.0" encoding="UTF-8"?><Error><Code>{code}</Code>'
    "<Message>said by a meddler</Message></Error>"
)


@dataclass
class Meddling:
    """What is done to every connection."""

    pause_s: float = 0.0  # before each piece
    cut_after_bytes: int | None = None  # of what the server answers
    lose_answers: int = 0  # of so many requests to come the answer is lost, not the request
    status: int = 0  # answered in the server's place
    code: str = ""


class Meddler:
    """A proxy on loopback; a context manager."""

    def __init__(self, port: int) -> None:
        self._does = Meddling()
        self._open: set[socket.socket] = set()
        self._ending = threading.Event()
        meddler = self

        class Handler(socketserver.BaseRequestHandler):
            def handle(self) -> None:
                meddler._meddle(self.request)

        class Server(socketserver.ThreadingTCPServer):
            daemon_threads = True
            allow_reuse_address = True

            def handle_error(self, request: object, client_address: object) -> None:
                """A connection that ends in the middle is what this is about."""

        self._upstream = port
        self._server = Server(("127.0.0.1", 0), Handler)
        self.endpoint = f"http://127.0.0.1:{self._server.server_address[1]}"

    @property
    def does(self) -> Meddling:
        return self._does

    @does.setter
    def does(self, meddling: Meddling) -> None:
        """From now on; connections that are open end, so that none escapes it."""
        self._does = meddling
        for each in tuple(self._open):
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)

    def __enter__(self) -> Self:
        threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True).start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._ending.set()
        self._server.shutdown()
        self._server.server_close()

    def _meddle(self, client: socket.socket) -> None:
        client.settimeout(20)
        self._open.add(client)
        try:
            if self.does.status:
                self._answer(client)
            else:
                self._pass_on(client)
        finally:
            self._open.discard(client)

    def _pass_on(self, client: socket.socket) -> None:
        with socket.create_connection(("127.0.0.1", self._upstream), 5) as server:
            there = threading.Thread(target=self._carry, args=(client, server, False), daemon=True)
            there.start()
            self._carry(server, client, True)

    def _carry(self, source: socket.socket, sink: socket.socket, answers: bool) -> None:
        carried, source_ends = 0, False
        source.settimeout(20)
        try:
            while not source_ends and (piece := source.recv(PIECE_BYTES)):
                if self._ending.wait(self.does.pause_s):
                    return
                if answers and self.does.lose_answers:
                    self.does.lose_answers -= 1
                    return
                left = self.does.cut_after_bytes
                if answers and left is not None and carried + len(piece) > left:
                    piece, source_ends = piece[: left - carried], True
                sink.sendall(piece)
                carried += len(piece)
        except OSError:
            pass
        finally:
            for end in (source, sink):
                with contextlib.suppress(OSError):
                    end.shutdown(socket.SHUT_RDWR)

    def _answer(self, client: socket.socket) -> None:
        asked = b""
        while b"\r\n\r\n" not in asked:
            asked += client.recv(PIECE_BYTES)
        head, _, rest = asked.partition(b"\r\n\r\n")
        lengths = [line for line in head.lower().split(b"\r\n") if line.startswith(b"content-len")]
        left = int(lengths[0].split(b":")[1]) - len(rest) if lengths else 0
        while left > 0:
            left -= len(client.recv(PIECE_BYTES))
        body = S3_ERROR.format(code=self.does.code).encode()
        line = f"HTTP/1.1 {self.does.status} Meddled\r\ncontent-length: {len(body)}\r\n"
        client.sendall(f"{line}connection: close\r\n\r\n".encode() + body)
