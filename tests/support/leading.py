"""A coordinator in a process of its own that leads from its first moment, for tests that kill it.

`python -m tests.support.leading SOCKET EPOCH`: it says "leading" once it serves on that unix
socket, and ends when its input does. Its store is its own memory, of which epochs are even; nobody
elected it.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from coordinator.server.testing import running_coordinator
from coordinator.store.election import Leader
from coordinator.store.memory import MemoryKeyValue, MemoryStore
from tests.support.cluster import QUICK


@dataclass(frozen=True)
class LeaderProcess:
    """A leader that may be killed and stopped."""

    process: asyncio.subprocess.Process
    leader: Leader


@asynccontextmanager
async def leader_process(directory: Path, epoch: int) -> AsyncIterator[LeaderProcess]:
    """Start one and wait until it serves; it is killed at the end."""
    path = directory / f"leader-{epoch}"
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "tests.support.leading", str(path), str(epoch)),
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    )
    try:
        assert process.stdout is not None
        async with asyncio.timeout(60):
            while (line := await process.stdout.readline()) != b"leading\n":
                assert line, "it ended at once"
        yield LeaderProcess(process, Leader(f"leader-{epoch}", f"unix:{path}", epoch))
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


async def _main(path: str, epoch: str) -> None:
    kv = MemoryKeyValue()
    store = MemoryStore(kv)
    while store.fence.epoch < int(epoch):
        store = MemoryStore(kv)
    assert store.fence.epoch == int(epoch)
    async with running_coordinator(
        store=store, listen=(), unix_socket=Path(path), policy=QUICK, name=f"leader-{epoch}"
    ):
        sys.stdout.write("leading\n")
        sys.stdout.flush()
        await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)


if __name__ == "__main__":
    asyncio.run(_main(*sys.argv[1:]))
