"""The S3 server as a process of its own, which can be killed and frozen."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

BUCKET = "images"
SERVE = Path(__file__).with_name("serve.py")


class S3Server:
    """One server on loopback with one bucket; what it keeps is in its memory."""

    def __init__(self, *, strangers: bool = True) -> None:
        """Start it; without `strangers` it refuses every key, since it knows none."""
        env = dict(os.environ)
        if not strangers:
            env["INITIAL_NO_AUTH_ACTION_COUNT"] = "1"  # making the bucket is the one
        self.process = subprocess.Popen(
            [sys.executable, SERVE], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=env
        )
        assert self.process.stdout is not None
        self.port = int(self.process.stdout.readline())
        put = urllib.request.Request(f"{self.endpoint}/{BUCKET}", method="PUT")
        urllib.request.urlopen(put, timeout=20).close()

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def end(self) -> None:
        """Kill it, frozen or not."""
        with contextlib.suppress(ProcessLookupError):
            self.process.send_signal(signal.SIGCONT)
        self.process.kill()
        self.process.wait(10)
        if self.process.stdout is not None:
            self.process.stdout.close()


@contextlib.contextmanager
def serving(*, strangers: bool = True) -> Iterator[S3Server]:
    """A server for a while."""
    server = S3Server(strangers=strangers)
    try:
        yield server
    finally:
        server.end()


def use(monkeypatch: pytest.MonkeyPatch, endpoint: str, *, http: bool = True) -> None:
    """Have this process's stores go to an endpoint, by the variables that a user sets."""
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_ENDPOINT", endpoint)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "somebody")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "do not tell")
    monkeypatch.setenv("AWS_REGION", "us-east-1")
    if http:
        monkeypatch.setenv("AWS_ALLOW_HTTP", "true")
