"""A real coordinator process over a given etcd, with its words at hand."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

SCRIPT = """
import asyncio, json, sys
from pathlib import Path
from coordinator.core.errors import AllstopError
from coordinator.server.run import CoordinatorOptions, run_coordinator

given = json.loads(sys.argv[1])
options = CoordinatorOptions(
    listen=("127.0.0.1:0",),
    etcd=tuple(given["etcd"]),
    data=Path(given["data"]) if given["data"] else None,
    name=given["name"],
    lease_s=given["lease_s"],
    policy=given["policy"],
    on_serving=lambda addresses: print("serving", *addresses, flush=True),
    on_leading=lambda epoch: print("leading", epoch, flush=True),
)
try:
    sys.exit(asyncio.run(run_coordinator(options)))
except AllstopError as error:
    print("ended", type(error).__name__, error, flush=True)
    sys.exit(error.exit_code)
"""
ROOT = Path(__file__).resolve().parents[3]


class CoordinatorProcess:
    """A coordinator in a process of its own; every line it says is kept."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.process = process
        self.lines: list[str] = []
        self.address = ""
        self._news = asyncio.Condition()
        self._readers = [
            asyncio.create_task(self._read(stream)) for stream in (process.stdout, process.stderr)
        ]

    async def _read(self, stream: asyncio.StreamReader | None) -> None:
        assert stream is not None
        while raw := await stream.readline():
            async with self._news:
                self.lines.append(raw.decode(errors="replace").rstrip())
                self._news.notify_all()

    async def said(self, wanted: Callable[[str], bool], *, since: int = 0, within_s: float) -> str:
        """The first line from the `since`-th on that is wanted, once it is there."""
        try:
            async with asyncio.timeout(within_s), self._news:
                at = since
                while True:
                    for line in self.lines[at:]:
                        if wanted(line):
                            return line
                    at = len(self.lines)
                    await self._news.wait()
        except TimeoutError:
            told = "\n".join(self.lines[-40:])
            raise AssertionError(
                f"not said within {within_s:g} s; its last words:\n{told}"
            ) from None

    async def leads(self, *, since: int = 0, within_s: float = 40.0) -> int:
        """Wait until it leads (again); returns the epoch."""
        line = await self.said(
            lambda each: each.startswith("leading "), since=since, within_s=within_s
        )
        return int(line.split()[1])

    async def steps_down(self, *, within_s: float) -> None:
        """Wait until it says that it does not lead any more."""
        await self.said(lambda each: "not leading any more" in each, within_s=within_s)

    async def kill(self) -> None:
        """SIGKILL, and wait."""
        with suppress(ProcessLookupError):
            self.process.send_signal(signal.SIGKILL)
        await self.process.wait()
        await asyncio.gather(*self._readers)


@asynccontextmanager
async def coordinator(
    etcd: Sequence[str],
    *,
    lease_s: float,
    policy: dict[str, float] | None = None,
    name: str = "first",
    data: Path | None = None,
) -> AsyncIterator[CoordinatorProcess]:
    """Start one, wait until it serves, and kill it at the end."""
    given: dict[str, Any] = {
        "etcd": list(etcd),
        "data": str(data) if data else "",
        "name": name,
        "lease_s": lease_s,
        "policy": policy or {},
    }
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-c",
        SCRIPT,
        json.dumps(given),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        limit=1 << 22,
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": f"{ROOT}:{ROOT / 'proto'}"},
    )
    started = CoordinatorProcess(process)
    try:
        serving = await started.said(lambda line: line.startswith("serving "), within_s=40.0)
        started.address = serving.split()[1]
        yield started
    finally:
        await started.kill()
