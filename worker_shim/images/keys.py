"""Where the key of an encrypted store comes from: a file, an environment variable, or a command.

The key itself is in no text of ours: not in errors, logs or arguments of a program.
"""

from __future__ import annotations

import base64
import binascii
import contextlib
import os
import shlex
import signal
import stat
import subprocess
from pathlib import Path

from coordinator.core.errors import BadRequest, SetupError
from worker_shim.images.sealing import KEY_BYTES, MasterKey

COMMAND_S = 30.0
READ_BYTES_MAX = 4096
MAKE = "`openssl rand -hex 32` makes one"
KINDS = ("file", "env", "command")
FORMS = "file:PATH, env:NAME or command:COMMAND"


def key_from(source: str, *, command_s: float = COMMAND_S) -> MasterKey | None:
    """Fetch the key from `file:PATH`, `env:NAME` or `command:COMMAND`; None for ''.

    A variable is taken out of this process's environment, so that no child gets it. Raises
    BadRequest for another form, SetupError where there is no key of 32 bytes (as they are, in
    hexadecimal, or in base64), or a file that others may read.
    """
    if not source:
        return None
    kind, rest = _split(source)
    if kind == "file":
        return _parsed(_of_file(Path(rest)), f"file {rest}")
    if kind == "env":
        value = os.environ.pop(rest, None)
        if value is None:
            raise SetupError(f"no variable {rest} with the store's key", advice=MAKE)
        return _parsed(value.encode(errors="surrogateescape"), f"variable {rest}")
    return _parsed(_of_command(rest, command_s), "what the command put out")


def checked_source(source: str) -> str:
    """Return a source that has one of the forms; nothing is fetched. Raises BadRequest."""
    if source:
        _split(source)
    return source


def _split(source: str) -> tuple[str, str]:
    kind, _, rest = source.partition(":")
    if kind not in KINDS or not rest:
        raise BadRequest("the store's key is given in no form that is known", advice=FORMS)
    return kind, rest


def secret_variable(source: str) -> str:
    """The name of the environment variable that holds the key; '' where none does."""
    kind, _, rest = source.partition(":")
    return rest if kind == "env" else ""


def _of_file(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            mode = os.fstat(file.fileno()).st_mode
            if stat.S_ISREG(mode) and mode & 0o077:
                raise SetupError(
                    f"{path} with the store's key may be read by others (mode {mode & 0o777:o})",
                    advice=f"chmod 600 {path}",
                )
            return file.read(READ_BYTES_MAX)
    except OSError as error:
        raise SetupError(f"cannot read the store's key: {error.strerror}: {path}") from error


def _of_command(line: str, seconds: float) -> bytes:
    """Run it in a process group of its own, which is killed at the deadline."""
    try:
        argv = shlex.split(line)
        child = subprocess.Popen(
            argv,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,  # it might tell the key in its complaints
            start_new_session=True,
        )
    except (OSError, ValueError, IndexError) as error:
        raise SetupError(f"the command for the store's key cannot be run: {error}") from None
    try:
        out, _ = child.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        raise SetupError(
            f"{argv[0]} did not give the store's key within {seconds:.0f} s and was killed"
        ) from None
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGKILL)
        child.wait(5)
        if child.stdout is not None:
            child.stdout.close()
    if child.returncode != 0:
        raise SetupError(
            f"{argv[0]}, which is to give the store's key, ended with {child.returncode}",
            advice="run it by hand",
        )
    return bytes(out[:READ_BYTES_MAX])


def _parsed(content: bytes, what: str) -> MasterKey:
    if len(content) == KEY_BYTES:
        return MasterKey(content)
    text = content.strip()
    with contextlib.suppress(ValueError):
        if len(text) == 2 * KEY_BYTES:
            return MasterKey(binascii.unhexlify(text))
    with contextlib.suppress(ValueError):
        if len(decoded := base64.b64decode(text, validate=True)) == KEY_BYTES:
            return MasterKey(decoded)
    raise SetupError(
        f"{what} is no key of {KEY_BYTES} bytes (as they are, in hexadecimal, or in base64)",
        advice=MAKE,
    ) from None
