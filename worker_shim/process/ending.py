"""The end of a long-lived helper of the shim's, which may hang in a driver."""

from __future__ import annotations

import asyncio


async def end_helper(helper: asyncio.subprocess.Process, *, within_s: float) -> None:
    """Kill it and reap it; one that hangs in the kernel is left, the next one is started beside it.

    No error when it has ended already.
    """
    if helper.returncode is not None:
        return
    helper.kill()
    try:
        async with asyncio.timeout(within_s):
            await helper.wait()
    except TimeoutError:
        return
