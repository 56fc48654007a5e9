"""Dumps that all tests of a module read, and the command with a service to ask."""

from __future__ import annotations

import pytest

from tests.integration.reading.kit import Dumped, Many
from tests.unit.cli.conftest import cli, operator

__all__ = ["cli", "operator"]


@pytest.fixture(scope="module")
def dumped(tmp_path_factory: pytest.TempPathFactory, criu_path: str) -> Dumped:
    """A tree as it was; its images are only read."""
    place = tmp_path_factory.mktemp("dumped")
    with Many(place / "tree", criu_path) as tree:
        return tree.dump(place / "images")


@pytest.fixture(scope="module")
def steps(tmp_path_factory: pytest.TempPathFactory, criu_path: str) -> tuple[Dumped, Dumped]:
    """Two dumps of one tree, which has taken a step between them."""
    place = tmp_path_factory.mktemp("steps")
    with Many(place / "tree", criu_path, zombie=False) as tree:
        first = tree.dump(place / "first" / "images")
        tree.step()
        return first, tree.dump(place / "second" / "images")
