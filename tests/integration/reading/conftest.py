"""One dump for all tests of a module that read it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.integration.reading.kit import Dumped, dump_many


@pytest.fixture(scope="module")
def dumped(tmp_path_factory: pytest.TempPathFactory, criu_path: str) -> Dumped:
    """A tree as it was; its images are only read."""
    place: Path = tmp_path_factory.mktemp("dumped")
    return dump_many(place / "tree", place / "images", criu_path)
