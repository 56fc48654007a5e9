"""Docker's command line: bounded, in a process group of its own, its last words in the error."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from coordinator.core.errors import SetupError

LAST_LINES = 25


def run(
    argv: Sequence[str | Path],
    timeout_s: float,
    *,
    env: Mapping[str, str] | None = None,
    cwd: Path | None = None,
    check: bool = True,
) -> str:
    """Run a command and return what it printed on stdout.

    Raises SetupError with its last words when it fails (unless `check` is off) or takes longer
    than `timeout_s`; it and what it started are then killed.
    """
    said = " ".join(map(str, argv[:4]))
    try:
        process = subprocess.Popen(
            [str(word) for word in argv],
            env={**os.environ, **(env or {})},
            cwd=cwd,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
            start_new_session=True,
        )
    except OSError as error:
        raise SetupError(f"{argv[0]} cannot be started: {error.strerror}") from None
    try:
        out, err = process.communicate(timeout=timeout_s)
    except subprocess.TimeoutExpired:
        raise SetupError(f"{said} took longer than {timeout_s:.0f} s") from None
    finally:
        _end(process)
    if check and process.returncode != 0:
        lines = (out + err).splitlines()[-LAST_LINES:]
        raise SetupError(f"{said} failed ({process.returncode})", details=tuple(lines))
    return out


def succeeds(argv: Sequence[str | Path], timeout_s: float, env: Mapping[str, str]) -> bool:
    """Whether a command can be run and ends well."""
    try:
        run(argv, timeout_s, env=env)
    except SetupError:
        return False
    return True


def _end(process: subprocess.Popen[str]) -> None:
    """Kill what is left of it, also when we were interrupted."""
    if process.poll() is None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
    process.communicate()
