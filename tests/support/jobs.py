"""Waiting for a job as an operator sees it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any

from coordinator.api.client import OperatorClient
from coordinator.core.errors import AllstopError
from coordinator.core.view import JobView

WAIT_S = 60.0
POLL_S = 0.05


async def until(what: str, look: Callable[[], Awaitable[Any] | Any], wait_s: float = WAIT_S) -> Any:
    """Look again and again until the answer is true; return it."""
    deadline = time.monotonic() + wait_s
    while True:
        found = look()
        if isinstance(found, Awaitable):
            found = await found
        if found:
            return found
        assert time.monotonic() < deadline, f"{what} did not come within {wait_s:g} s"
        await asyncio.sleep(POLL_S)


async def job_of(client: OperatorClient, name: str) -> JobView | None:
    """The job as `allstop jobs` shows it; None while it is not known or nobody leads."""
    try:
        return next((view for view in await client.jobs() if view.job.job == name), None)
    except AllstopError:
        return None


async def runs_in(client: OperatorClient, name: str, incarnation: int) -> JobView:
    """Wait until all of the job runs in this incarnation."""

    async def there() -> JobView | None:
        view = await job_of(client, name)
        right = view is not None and view.job.incarnation == incarnation
        return view if right and view is not None and view.state == "running" else None

    found: JobView = await until(f"the job in incarnation {incarnation}", there)
    return found
