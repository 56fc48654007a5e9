"""The tests that need a GPU, tried over a fake one: on a machine that has one they must not rot."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.gpu.kit import ROOT, fake_environment

pytestmark = [pytest.mark.root, pytest.mark.criu, pytest.mark.cc, pytest.mark.timeout(180)]


def test_they_pass_over_a_fake_device(tmp_path: Path) -> None:
    place = tmp_path / "devices"
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "tests/gpu", "-q", "-p", "no:cacheprovider"],
        env={**os.environ, "ALLSTOP_MUST_RUN": "1", **fake_environment(place)},
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=150,
        start_new_session=True,
    )
    assert done.returncode == 0, done.stdout[-3000:]
    assert "10 passed" in done.stdout
