"""How a verb asks a coordinator."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from coordinator.api.client import OperatorClient
from coordinator.cli.output import Output
from coordinator.core.errors import AllstopError

Result = TypeVar("Result")


PATIENCE_S = 20.0  # longer than a lease: a dead leader has its successor by then


def client_of(output: Output) -> OperatorClient:
    """A client of the coordinators of this command line; raises SetupError for its TLS files."""

    def waiting(error: AllstopError) -> None:
        output.note(f"{error.what}; waiting", style="dim")

    return OperatorClient(
        output.safe_addresses, tls=output.tls, patience_s=PATIENCE_S, on_waiting=waiting
    )


def ask(output: Output, question: Callable[[OperatorClient], Awaitable[Result]]) -> Result:
    """Put one question to the coordinators of this command line; raises AllstopError."""

    async def whole() -> Result:
        async with client_of(output) as client:
            return await question(client)

    return asyncio.run(whole())
