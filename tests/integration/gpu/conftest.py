"""One deployment for each way to the driver, made anew when a test broke it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import ExitStack

import pytest
import pytest_asyncio

from lab import Lab
from tests.integration.badluck.kit import NODES
from tests.integration.badluck.sharing import kept
from tests.integration.gpu.kit import GpuPair

POLICY = (
    *("--lease", "3s", "--policy", "margin_s=2s", "--policy", "adopt_s=15s"),
    *("--policy", "gpu_lock_s=4s", "--policy", "gpu_save_s=4s"),
    *("--policy", "gpu_restore_s=6s", "--policy", "gpu_unlock_s=4s"),
)


@pytest_asyncio.fixture(scope="package", params=["library", "program"])
async def _shared(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, criu_path: str
) -> AsyncIterator[Callable[[], Awaitable[GpuPair]]]:
    def make(stack: ExitStack) -> GpuPair:
        root = tmp_path_factory.mktemp("gpus")
        lab = stack.enter_context(Lab(root / "lab", NODES))
        return GpuPair(lab, root, criu_path, policy=POLICY, engine=request.param)

    async with kept(make) as sound:
        yield sound


@pytest_asyncio.fixture
async def gpus(_shared: Callable[[], Awaitable[GpuPair]]) -> AsyncIterator[GpuPair]:
    """The job on n0 and n1, two devices each, stepping."""
    pair = await _shared()
    try:
        yield pair
    finally:
        pair.behave()
