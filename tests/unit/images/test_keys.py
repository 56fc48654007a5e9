"""Where keys come from, and that nobody else learns of them."""

from __future__ import annotations

import base64
import os
import time
from pathlib import Path

import pytest

from coordinator.core.errors import AllstopError, BadRequest, SetupError
from worker_shim.images.keys import key_from, secret_variable

SECRET = bytes(range(100, 132))


@pytest.mark.parametrize(
    "content",
    [
        SECRET,
        SECRET.hex().encode(),
        SECRET.hex().upper().encode() + b"\n",
        base64.b64encode(SECRET) + b"\r\n",
    ],
)
def test_a_file_with_a_key(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "key"
    path.write_bytes(content)
    path.chmod(0o600)
    key = key_from(f"file:{path}")
    assert key is not None
    assert key.secret == SECRET


def test_no_source_is_no_key() -> None:
    assert key_from("") is None


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o644, 0o620])
def test_a_file_that_others_may_read_is_refused(tmp_path: Path, mode: int) -> None:
    path = tmp_path / "key"
    path.write_bytes(SECRET)
    path.chmod(mode)
    with pytest.raises(SetupError, match="others"):
        key_from(f"file:{path}")


@pytest.mark.parametrize(
    "content", [b"", b"short", SECRET.hex()[:-2].encode(), b"x" * 64, SECRET * 2]
)
def test_what_is_no_key_is_refused_and_not_shown(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "key"
    path.write_bytes(content)
    path.chmod(0o600)
    with pytest.raises(SetupError, match="no key of 32 bytes") as raised:
        key_from(f"file:{path}")
    shown = repr(raised.value.to_fields())
    assert not content or content.decode(errors="replace") not in shown


def test_a_variable_is_taken_out_of_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STORE_KEY", SECRET.hex())
    key = key_from("env:STORE_KEY")
    assert key is not None
    assert key.secret == SECRET
    assert "STORE_KEY" not in os.environ
    with pytest.raises(SetupError, match="STORE_KEY"):
        key_from("env:STORE_KEY")
    assert (secret_variable("env:STORE_KEY"), secret_variable("file:/x")) == ("STORE_KEY", "")


def test_a_command_gives_the_key(tmp_path: Path) -> None:
    key = key_from(f"command:printf '%s\\n' {SECRET.hex()}")
    assert key is not None
    assert key.secret == SECRET


def test_a_command_that_hangs_is_killed_with_its_children(tmp_path: Path) -> None:
    script = tmp_path / "vault"
    script.write_text(f"#!/bin/sh\nsleep 1000 & echo $! > {tmp_path}/child\nwait\n")
    script.chmod(0o700)
    began = time.monotonic()
    with pytest.raises(SetupError, match="did not give the store's key"):
        key_from(f"command:{script}", command_s=0.5)
    assert time.monotonic() - began < 5
    child = int((tmp_path / "child").read_text())
    deadline = time.monotonic() + 5
    while _runs(child):
        assert time.monotonic() < deadline, "a child outlived the command"
        time.sleep(0.01)


def _runs(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


@pytest.mark.parametrize(
    ("line", "kind"),
    [
        ("command:false", SetupError),
        ("command:  ", SetupError),
        ("command:/no/such/program", SetupError),
        ("command:'unfinished", SetupError),
        ("file:/no/such/file", SetupError),
        ("file:", BadRequest),
        ("env:", BadRequest),
        (SECRET.hex(), BadRequest),
    ],
)
def test_sources_without_a_key(line: str, kind: type[AllstopError]) -> None:
    with pytest.raises(kind) as raised:
        key_from(line)
    assert SECRET.hex() not in repr(raised.value.to_fields())


def test_what_a_command_says_besides_is_not_shown() -> None:
    with pytest.raises(SetupError) as raised:
        key_from(f"command:sh -c 'echo {SECRET.hex()} >&2; exit 3'")
    assert "ended with 3" in raised.value.what
    assert SECRET.hex() not in repr(raised.value.to_fields())
