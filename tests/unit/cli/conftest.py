"""A real gRPC server that answers operators with what the test laid down, and the real command."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc
import pytest
from allstop.v1 import operator_pb2, operator_pb2_grpc

from coordinator.core.errors import AllstopError
from coordinator.link.mapping import ERROR_METADATA, packed

ROOT = Path(__file__).resolve().parents[3]
RUN_TIMEOUT_S = 30


class FakeOperator(operator_pb2_grpc.OperatorServicer):
    """Answers each method with `replies[method]`: a message, a list of events, or an error.

    Of a deque each reply is given once, the last one again and again.
    """

    def __init__(self) -> None:
        self.replies: dict[str, Any] = {}
        self.requests: list[tuple[str, Any]] = []

    def _answer(self, method: str, request: Any, context: grpc.ServicerContext) -> Any:
        self.requests.append((method, request))
        reply = self.replies[method]
        if isinstance(reply, deque):
            reply = reply.popleft() if len(reply) > 1 else reply[0]
        if isinstance(reply, AllstopError):
            self._fail(reply, context)
        return reply

    def _fail(self, error: AllstopError, context: grpc.ServicerContext) -> None:
        context.set_trailing_metadata(((ERROR_METADATA, packed(error)),))
        context.abort(getattr(grpc.StatusCode, error.grpc_status), str(error))

    def _stream(self, method: str, request: Any, context: Any) -> Iterator[Any]:
        for event in self._answer(method, request, context):
            if isinstance(event, Exception):
                context.abort(grpc.StatusCode.UNAVAILABLE, str(event))
            if callable(event):
                event()
                continue
            yield event


def _unary(method: str) -> Callable[..., Any]:
    return lambda self, request, context: self._answer(method, request, context)


def _stream(method: str) -> Callable[..., Any]:
    return lambda self, request, context: self._stream(method, request, context)


for _method in operator_pb2.DESCRIPTOR.services_by_name["Operator"].methods:
    _make = _stream if _method.server_streaming else _unary
    setattr(FakeOperator, _method.name, _make(_method.name))


@dataclass
class Ran:
    """How one run of `allstop` ended."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        """Stdout, which must be exactly one line of JSON."""
        assert self.out.count("\n") == 1, self.out
        return json.loads(self.out)


@dataclass
class Cli:
    """Runs `allstop` in a process of its own, against the fake operator service."""

    operator: FakeOperator
    address: str
    env: dict[str, str] = field(default_factory=dict)

    def __call__(self, *arguments: str, **env: str) -> Ran:
        done = subprocess.run(
            [sys.executable, "-m", "coordinator.cli.main", *arguments],
            env={**self.environment(), **env},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=RUN_TIMEOUT_S,
        )
        return Ran(done.returncode, done.stdout, done.stderr)

    def environment(self) -> dict[str, str]:
        """The environment without anything that would lead to another coordinator."""
        kept = {name: value for name, value in os.environ.items() if "ALLSTOP" not in name}
        paths = f"{ROOT}:{ROOT / 'proto'}"
        return {**kept, "PYTHONPATH": paths, "ALLSTOP_COORDINATOR": self.address, **self.env}

    def request(self, method: str) -> Any:
        """The one request of this method that was made."""
        [request] = [request for name, request in self.operator.requests if name == method]
        return request


@pytest.fixture
def operator() -> FakeOperator:
    """The service's answers, to be laid down by the test."""
    return FakeOperator()


@pytest.fixture
def cli(operator: FakeOperator, tmp_path: Path) -> Iterator[Cli]:
    """`cli("jobs", "-o", "json")` runs the command and returns how it ended."""
    server = grpc.server(ThreadPoolExecutor(4))
    operator_pb2_grpc.add_OperatorServicer_to_server(operator, server)  # type: ignore[no-untyped-call]
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    yield Cli(operator, f"127.0.0.1:{port}", {"XDG_STATE_HOME": str(tmp_path)})
    server.stop(grace=None).wait(10)
