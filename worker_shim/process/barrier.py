"""A memory barrier on every CPU: after it, what ranks had written before is seen here."""

from __future__ import annotations

import asyncio
import ctypes
import platform
import time

# <asm/unistd.h> and <linux/membarrier.h>. GLOBAL needs no registration by the ranks, which would
# be lost in a restore; it waits for a grace period of the kernel, some milliseconds.
_SYSCALL_NUMBER = {"x86_64": 324, "aarch64": 283}
_COMMAND_GLOBAL = 1
FALLBACK_S = 0.02  # store buffers drain in well under a microsecond


async def memory_barrier() -> None:
    """Wait until every CPU has passed a full memory barrier, without blocking the event loop."""
    await asyncio.to_thread(_barrier)


def _barrier() -> None:
    number = _SYSCALL_NUMBER.get(platform.machine())
    if number is not None:
        libc = ctypes.CDLL(None, use_errno=True)
        if libc.syscall(number, _COMMAND_GLOBAL, 0, 0) == 0:
            return
    time.sleep(FALLBACK_S)  # kernels without it (nohz_full, old ones)
