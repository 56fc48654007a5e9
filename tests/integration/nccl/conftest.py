"""The library, compiled once."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.fakes.nccl.build import build


@pytest.fixture(scope="session")
def nccl_shim(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The stand-in for NCCL's checkpoint shim."""
    return build(tmp_path_factory.mktemp("nccl"))
