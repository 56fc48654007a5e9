"""Running an outside program: own process group, own deadline, bounded output.

This is the one place where the failures of outside programs (criu, nft, ss …) become DriverError.
"""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from coordinator.core.errors import DriverError
from worker_shim.process.waiting import ProcessHandle

OUTPUT_BYTES_MAX = 1 << 20  # of each stream the end is kept, which is where programs complain
DETAIL_LINES_MAX = 20
REAP_S_MAX = 5.0  # a killed process that is still there after this is stuck in the kernel
CHUNK_BYTES = 1 << 16


@dataclass(frozen=True)
class Finished:
    """A program that ended by itself, whatever its exit code (-N: killed by signal N)."""

    argv: tuple[str, ...]
    exit_code: int
    stdout: str
    stderr: str
    took_ms: int
    truncated: bool = False  # the beginning of stdout or stderr was dropped

    def require(self, what: str, *, advice: str = "", definite: bool = True) -> Finished:
        """Return self when the exit code is 0, else raise DriverError with the program's words."""
        if self.exit_code == 0:
            return self
        ended = (
            f"was killed by {signal_name(-self.exit_code)}"
            if self.exit_code < 0
            else f"ended with exit code {self.exit_code}"
        )
        raise DriverError(
            f"{what}: {os.path.basename(self.argv[0])} {ended}",
            advice=advice or f"run it by hand: {' '.join(self.argv)}",
            definite=definite,
            details=last_lines(self.stderr or self.stdout),
        )


class Commands(Protocol):
    """What drivers need in order to call outside programs; `CommandRunner` or its fake."""

    async def run(
        self,
        argv: Sequence[str],
        *,
        deadline_s: float,
        env: Mapping[str, str] | None = None,
        cwd: str | Path | None = None,
        stdin: str | bytes | None = None,
    ) -> Finished:
        """Run to the end; raises DriverError when it cannot start or does not end in time."""


class CommandRunner:
    """Runs programs one by one or many at once; holds nothing between calls."""

    def __init__(self, *, output_bytes_max: int = OUTPUT_BYTES_MAX) -> None:
        self._output_bytes_max = output_bytes_max
        self._reaping: set[asyncio.Task[None]] = set()

    async def run(
        self,
        argv: Sequence[str],
        *,
        deadline_s: float,
        env: Mapping[str, str] | None = None,
        cwd: str | Path | None = None,
        stdin: str | bytes | None = None,
    ) -> Finished:
        """Run `argv` in its own session and return how it ended, whatever its exit code.

        `env=None` inherits. `stdin` is the whole input, else /dev/null. At the deadline (or when
        cancelled) the whole process group is killed. Raises DriverError: with `definite=True` when
        the program could not be started, with `definite=False` when it ran out of time, since it
        may have done its work by then.
        """
        started = time.monotonic()
        stdout, stderr = _Output(self._output_bytes_max), _Output(self._output_bytes_max)
        with stdout, stderr:
            child = _start(argv, env, cwd, stdin, stdout, stderr)
            in_time = await self._ended(child, deadline_s)
            stdout.drain()
            stderr.drain()
        took_s = time.monotonic() - started
        if not in_time:
            raise DriverError(
                f"{os.path.basename(argv[0])} did not end within {deadline_s:.1f} s and was killed",
                advice=f"look at what it waits for: {' '.join(argv)}",
                definite=False,
                details=last_lines(stderr.text() or stdout.text()),
            )
        return Finished(
            argv=tuple(argv),
            exit_code=child.returncode,
            stdout=stdout.text(),
            stderr=stderr.text(),
            took_ms=round(took_s * 1000),
            truncated=stdout.truncated or stderr.truncated,
        )

    async def _ended(self, child: subprocess.Popen[bytes], deadline_s: float) -> bool:
        """Wait for the child; kill its group when the time runs out or the caller gives up."""
        handle = ProcessHandle(child.pid)
        try:
            in_time = await handle.ended(max(0.0, deadline_s))
        except asyncio.CancelledError:
            _kill_group(child.pid)
            reaper = asyncio.get_running_loop().create_task(_reap(child, handle))
            self._reaping.add(reaper)
            reaper.add_done_callback(self._reaping.discard)
            raise
        if not in_time:
            _kill_group(child.pid)
        await _reap(child, handle)
        return in_time


def signal_name(number: int) -> str:
    """SIGKILL for 9; `signal N` for one without a name."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def last_lines(text: str, limit: int = DETAIL_LINES_MAX) -> tuple[str, ...]:
    """The last lines that are not empty, as they go into an error's details."""
    return tuple(line for line in text.splitlines() if line.strip())[-limit:]


class _Output:
    """The read end of a pipe whose newest bytes are kept.

    The end of the program, not the end of the stream, ends the reading: a program may leave a
    process behind that holds the pipe open.
    """

    def __init__(self, limit_bytes: int) -> None:
        self._limit_bytes = limit_bytes
        self._kept = bytearray()
        self.truncated = False
        self._read_fd, self.write_fd = -1, -1

    def __enter__(self) -> _Output:
        self._read_fd, self.write_fd = os.pipe2(os.O_CLOEXEC)
        os.set_blocking(self._read_fd, False)
        asyncio.get_running_loop().add_reader(self._read_fd, self._read_some)
        return self

    def __exit__(self, *_: object) -> None:
        asyncio.get_running_loop().remove_reader(self._read_fd)
        os.close(self._read_fd)
        self.close_write()

    def close_write(self) -> None:
        if self.write_fd >= 0:
            os.close(self.write_fd)
            self.write_fd = -1

    def _read_some(self) -> bool:
        try:
            chunk = os.read(self._read_fd, CHUNK_BYTES)
        except BlockingIOError:
            return False
        if not chunk:
            asyncio.get_running_loop().remove_reader(self._read_fd)
            return False
        self._kept += chunk
        surplus = len(self._kept) - self._limit_bytes
        if surplus > 0:
            del self._kept[:surplus]
            self.truncated = True
        return True

    def drain(self) -> None:
        """Take what the ended program left in the pipe: at most a pipe's capacity, so bounded."""
        for _ in range(2 * (1 << 20) // CHUNK_BYTES):
            if not self._read_some():
                return

    def text(self) -> str:
        return self._kept.decode(errors="replace")


def _start(
    argv: Sequence[str],
    env: Mapping[str, str] | None,
    cwd: str | Path | None,
    stdin: str | bytes | None,
    stdout: _Output,
    stderr: _Output,
) -> subprocess.Popen[bytes]:
    """Fork and exec; raises DriverError with nothing left running."""
    input_fd = _input(stdin)
    try:
        return subprocess.Popen(
            list(argv),
            stdin=input_fd,
            stdout=stdout.write_fd,
            stderr=stderr.write_fd,
            env=None if env is None else dict(env),
            cwd=cwd,
            start_new_session=True,
        )
    except OSError as error:
        missing = error.filename or argv[0]
        raise DriverError(
            f"cannot start {argv[0]}: {error.strerror} ({missing})",
            advice=f"check that {missing} exists and may be run; `make tools` fetches the tools",
        ) from error
    finally:
        os.close(input_fd)
        stdout.close_write()
        stderr.close_write()


def _input(stdin: str | bytes | None) -> int:
    """A descriptor to read the whole input from: memory, so that nobody has to feed a pipe."""
    if stdin is None:
        return os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
    fd = os.memfd_create("allstop-stdin", os.MFD_CLOEXEC)
    with os.fdopen(os.dup(fd), "wb") as memory:
        memory.write(stdin.encode() if isinstance(stdin, str) else stdin)
    os.lseek(fd, 0, os.SEEK_SET)
    return fd


def _kill_group(leader: int) -> None:
    try:
        os.killpg(leader, signal.SIGKILL)
    except ProcessLookupError:
        return


async def _reap(child: subprocess.Popen[bytes], handle: ProcessHandle) -> None:
    """Collect the exit code; one that not even SIGKILL ends is left to the kernel."""
    with handle:
        if await handle.ended(REAP_S_MAX):
            child.wait()
        else:
            child.returncode = -signal.SIGKILL
