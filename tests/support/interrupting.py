"""Waiting for the word at which a test interrupts a command."""

from __future__ import annotations

import subprocess

import pytest


def said_until(run: subprocess.Popen[str], at: str) -> None:
    """Read what the command says on stderr until a line has `at`; fail where it ends before."""
    assert run.stderr is not None
    said = []
    for line in run.stderr:
        said.append(line)
        if at in line:
            return
    pytest.fail(f"it never came to {at!r}: {''.join(said)[-4000:]}")
