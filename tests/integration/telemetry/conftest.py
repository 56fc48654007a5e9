"""A pair whose shims have metrics, shared by the tests that only look."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import ExitStack

import pytest
import pytest_asyncio

from lab import Lab
from tests.integration.badluck.kit import NODES, Pair
from tests.integration.telemetry.kit import SHIM


@pytest_asyncio.fixture(scope="package")
async def pair(tmp_path_factory: pytest.TempPathFactory, criu_path: str) -> AsyncIterator[Pair]:
    """The job on n0 and n1, stepping."""
    root = tmp_path_factory.mktemp("seen")
    with ExitStack() as stack:
        lab = stack.enter_context(Lab(root / "lab", [*NODES]))
        made = Pair(lab, root, criu_path)
        made.deployment.env = {**made.deployment.env, "ALLSTOP_METRICS": SHIM}
        await made.start()
        yield made
        await made.stop()
