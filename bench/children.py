"""Child processes of a measurement: a JSON line asks, a JSON line answers, end of input ends it."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import json
import os
import resource
import signal
import sys
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any

from coordinator.core.errors import SetupError

ASK_DEADLINE_S = 120.0
END_DEADLINE_S = 15.0
LOG_TAIL_BYTES = 2_000
PR_SET_PDEATHSIG = 1
QUIET = {"GRPC_VERBOSITY": "NONE"}  # a thousand connections that end are a thousand lines
TICKS_PER_S = os.sysconf("SC_CLK_TCK")
PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")

Handler = Callable[..., Awaitable[Mapping[str, Any]]]


class Child:
    """One process of ours; `async with` ends it."""

    def __init__(self, process: asyncio.subprocess.Process, log: Path) -> None:
        self.process = process
        self._log = log

    @classmethod
    async def start(cls, module: str, *arguments: str, log: Path) -> Child:
        """`python -m MODULE ARGUMENTS`; what it says for people goes to `log`."""
        with log.open("wb") as output:
            process = await asyncio.create_subprocess_exec(
                sys.executable,
                "-m",
                module,
                *arguments,
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=output,
                env={**os.environ, **QUIET},
                start_new_session=True,  # a Ctrl-C is ours, and we end it
            )
        return cls(process, log)

    async def __aenter__(self) -> Child:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    async def ask(self, what: str, *, deadline_s: float = ASK_DEADLINE_S, **values: Any) -> Any:
        """Let it do one thing; raises SetupError with the end of its log when it cannot."""
        await self.tell(what, **values)
        return await self.answer(what, deadline_s=deadline_s)

    async def tell(self, what: str, **values: Any) -> None:
        """The first half of `ask`, so that several can be asked at once."""
        assert self.process.stdin is not None
        with contextlib.suppress(ConnectionError):
            self.process.stdin.write(json.dumps({"what": what, **values}).encode() + b"\n")
            await self.process.stdin.drain()

    async def answer(self, what: str, *, deadline_s: float = ASK_DEADLINE_S) -> Any:
        """The second half of `ask`."""
        assert self.process.stdout is not None
        line = b""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(deadline_s):
                line = await self.process.stdout.readline()
        if not line:
            raise SetupError(
                f"process {self.process.pid} of the measurement did not answer {what!r}"
                f" within {deadline_s:g} s (exit code {self.process.returncode})",
                details=tuple(self._tail()),
            )
        return json.loads(line)

    def _tail(self) -> list[str]:
        text = self._log.read_bytes()[-LOG_TAIL_BYTES:].decode(errors="replace")
        return text.splitlines()[-8:]

    async def stop(self) -> None:
        """Close its input, and be less patient with each try."""
        if self.process.stdin is not None:
            self.process.stdin.close()
        for number in (0, signal.SIGTERM, signal.SIGKILL):
            with contextlib.suppress(ProcessLookupError):
                if number:
                    self.process.send_signal(number)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(END_DEADLINE_S):
                    await self.process.communicate()  # to the end of its pipes
                    return


async def serve(handlers: Mapping[str, Handler]) -> None:
    """The child's side: answer each line by the handler it names, until the input ends.

    The process dies with its parent even if that is killed.
    """
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    reader = asyncio.StreamReader()
    loop = asyncio.get_running_loop()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    while line := await reader.readline():
        request = json.loads(line)
        answer = await handlers[request.pop("what")](**request)
        sys.stdout.write(json.dumps(answer) + "\n")
        sys.stdout.flush()


def open_files_max() -> int:
    """How many files this process may have open, after asking for as many as it may ask for."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return hard


def cpu_s(pid: int) -> float:
    """Processor seconds of a process so far, user and system."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS_PER_S


def resident_bytes(pid: int) -> int:
    """Memory that a process has resident."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * PAGE_BYTES


def children_of(pid: int) -> list[int]:
    """Processes that a process has started and that live, theirs included."""
    own = [
        int(child)
        for task in Path(f"/proc/{pid}/task").glob("*/children")
        for child in task.read_text().split()
    ]
    return [each for child in own for each in (child, *children_of(child))]
