"""A metadata service as EC2, Compute Engine and Azure have theirs, in a process or as one.

    metadata_service.py HOST PORT CLOUD FILE    answers what the JSON object in FILE says

In EC2's a session token is asked for, in the others their header. Compute Engine's waits for a
change where it is asked to. What is set is answered until it is set anew; None is not there.
"""

from __future__ import annotations

import contextlib
import json
import sys
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

TOKEN = "AQAEANh0token=="
HEADERS = {"gcp": ("Metadata-Flavor", "Google"), "azure": ("Metadata", "true")}


class MetadataService:
    """The service of one cloud, and what was asked of it."""

    def __init__(self, cloud: str, **values: Any) -> None:
        """`values` by path, such as `spot/instance-action`."""
        self.cloud = cloud
        self.values: dict[str, Any] = dict(values)
        self.asked: list[str] = []  # method and path
        self.posted: list[Any] = []
        self.token = TOKEN
        self.status = 0  # for everything that is read; 0: as it should be
        self.post_status = 200
        self.changed = threading.Condition()
        self.version = 1

    def set(self, path: str, value: Any) -> None:
        """From now on this is answered."""
        with self.changed:
            self.values[path] = value
            self.version += 1
            self.changed.notify_all()

    def etag(self) -> str:
        """Of the present values."""
        return f"{self.version:016x}"

    def await_change(self, etag: str, timeout_s: float) -> None:
        """Wait until the values are others than those of `etag`."""
        with self.changed:
            self.changed.wait_for(lambda: self.etag() != etag, timeout_s)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    service: MetadataService

    def log_message(self, *_: object) -> None:
        """Say nothing."""

    def do_PUT(self) -> None:
        """The token of EC2."""
        self.service.asked.append(f"PUT {self.path}")
        wanted = self.headers.get("X-aws-ec2-metadata-token-ttl-seconds", "")
        if self.path == "/latest/api/token" and wanted.isdigit() and int(wanted) <= 21600:
            self._answer(200, self.service.token)
        else:
            self._answer(400, "")

    def do_POST(self) -> None:
        """What Azure is told of its events."""
        self.service.asked.append(f"POST {self.path}")
        self.service.posted.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
        self._answer(self.service.post_status, "")

    def do_GET(self) -> None:
        """One of the values."""
        service = self.service
        service.asked.append(f"GET {self.path}")
        parts = urlsplit(self.path)
        if service.status or not self._may():
            self._answer(service.status or (401 if service.cloud == "aws" else 400), "no")
            return
        told = parse_qs(parts.query)
        if "wait_for_change" in told:
            service.await_change(told["last_etag"][0], float(told["timeout_sec"][0]))
        value = service.values.get(parts.path.split("/", 3)[-1])
        if value is None:
            self._answer(404, "<html>Not Found</html>")
        else:
            self._answer(200, value if isinstance(value, str) else json.dumps(value))

    def _may(self) -> bool:
        if self.service.cloud == "aws":
            return self.headers.get("X-aws-ec2-metadata-token") == self.service.token
        name, value = HEADERS[self.service.cloud]
        return self.headers.get(name) == value

    def _answer(self, status: int, text: str) -> None:
        body = text.encode()
        self.send_response(status)
        self.send_header("ETag", self.service.etag())
        if self.service.cloud == "azure":  # any server may do that
            self.send_header("Transfer-Encoding", "chunked")
            self.end_headers()
            for part in (body[:7], body[7:]):
                if part:
                    self.wfile.write(b"%x\r\n%s\r\n" % (len(part), part))
            self.wfile.write(b"0\r\n\r\n")
        else:
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False


@contextlib.contextmanager
def serving(service: MetadataService, host: str = "127.0.0.1", port: int = 0) -> Iterator[str]:
    """Serve it; the value is `http://HOST:PORT`."""
    handler = type("Handler", (_Handler,), {"service": service})
    server = _Server((host, port), handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    try:
        yield f"http://{host}:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join(5.0)


def _main(host: str, port: str, cloud: str, file: str) -> None:
    service, path = MetadataService(cloud), Path(file)
    with serving(service, host, int(port)):
        while True:
            with contextlib.suppress(OSError, ValueError):
                for key, value in json.loads(path.read_text()).items():
                    if service.values.get(key) != value:
                        service.set(key, value)
            time.sleep(0.05)


if __name__ == "__main__":
    _main(*sys.argv[1:])
