"""An operator's service of a test's own on real gRPC."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import grpc.aio
from allstop.v1 import operator_pb2_grpc


@asynccontextmanager
async def serving(service: operator_pb2_grpc.OperatorServicer) -> AsyncIterator[str]:
    """Serve it on a free port; gives the address."""
    server = grpc.aio.server()
    operator_pb2_grpc.add_OperatorServicer_to_server(service, server)  # type: ignore[no-untyped-call]
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        yield f"127.0.0.1:{port}"
    finally:
        await server.stop(0)
