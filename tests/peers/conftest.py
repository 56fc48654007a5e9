"""What the runs measured, for bench/results: with PEERS_RESULT=FILE it is written there."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

RESULT_VARIABLE = "PEERS_RESULT"


@pytest.fixture(scope="session")
def results() -> Iterator[dict[str, Any]]:
    """By package; what a file has of others stays there."""
    found: dict[str, Any] = {}
    yield found
    if place := os.environ.get(RESULT_VARIABLE):
        path = Path(place)
        before = json.loads(path.read_text()) if path.exists() else {}
        path.write_text(json.dumps(before | found, indent=2) + "\n")
