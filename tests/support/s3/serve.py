"""Runs moto's S3 server on a free port of loopback and prints the port: `python serve.py`.

moto looks whether a key is there and then writes it, in threads: one request at a time keeps a
conditional put what it is in S3.
"""

import threading
from collections.abc import Callable, Iterable
from typing import Any

from moto.server import DomainDispatcherApplication, create_backend_app
from werkzeug.serving import WSGIRequestHandler, make_server


class OneByOne:
    """The application with every writing request alone."""

    def __init__(self, application: Any) -> None:
        self._application = application
        self._alone = threading.Lock()

    def __call__(self, environ: dict[str, Any], start: Callable[..., Any]) -> Iterable[bytes]:
        if environ["REQUEST_METHOD"] in ("GET", "HEAD"):
            return self._application(environ, start)
        with self._alone:
            return list(self._application(environ, start))


class Quiet(WSGIRequestHandler):
    """Connections stay open, and nobody writes of each request."""

    protocol_version = "HTTP/1.1"

    def log(self, type: str, message: str, *args: Any) -> None:  # noqa: A002
        """Nothing."""


if __name__ == "__main__":
    application = OneByOne(DomainDispatcherApplication(create_backend_app))
    server = make_server("127.0.0.1", 0, application, threaded=True, request_handler=Quiet)
    print(server.server_port, flush=True)
    server.serve_forever()
