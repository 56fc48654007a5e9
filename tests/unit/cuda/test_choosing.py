"""Which way to the CUDA driver is taken."""

from __future__ import annotations

from pathlib import Path

import pytest

from coordinator.core.errors import SetupError
from worker_shim.cuda import choosing
from worker_shim.process.runner import CommandRunner


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A PATH with nothing in it yet."""
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(choosing, "_path", lambda: str(tmp_path))
    return tmp_path


def program(path: Path) -> None:
    (path / "cuda-checkpoint").write_text("#!/bin/sh\n")
    (path / "cuda-checkpoint").chmod(0o755)


@pytest.mark.parametrize(
    ("driver", "bindings", "there", "chosen"),
    [
        (False, True, True, ""),
        (True, True, True, "library"),
        (True, False, True, "program"),
        (True, True, False, "library"),
        (True, False, False, ""),
    ],
)
def test_auto(
    path: Path,
    monkeypatch: pytest.MonkeyPatch,
    driver: bool,
    bindings: bool,
    there: bool,
    chosen: str,
) -> None:
    monkeypatch.setattr(choosing, "_has_bindings", lambda: bindings)
    if there:
        program(path)
    version = path / "version"
    if driver:
        version.touch()
    assert choosing.choose("auto", CommandRunner(), driver=version).engine == chosen


def test_what_is_wanted_by_name_and_missing_is_an_error(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(choosing, "_has_bindings", lambda: False)
    for engine in ("library", "program"):
        with pytest.raises(SetupError):
            choosing.choose(engine, CommandRunner())
    program(path)
    assert choosing.choose("program", CommandRunner()).engine == "program"
    assert choosing.choose("none", CommandRunner()).engine == ""
