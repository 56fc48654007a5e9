"""How a verb asks a coordinator."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from coordinator.api.client import OperatorClient
from coordinator.cli.output import Output

Result = TypeVar("Result")


def ask(output: Output, question: Callable[[OperatorClient], Awaitable[Result]]) -> Result:
    """Put one question to the coordinators of this command line; raises AllstopError."""

    async def whole() -> Result:
        async with OperatorClient(output.addresses) as client:
            return await question(client)

    return asyncio.run(whole())
