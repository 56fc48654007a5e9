"""What the fuzzed services have in common."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest_asyncio

from tests.integration.fuzz.world import World, world


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def running() -> AsyncIterator[World]:
    """One coordinator for all examples: what the first one spoils the later ones see."""
    async with world() as made:
        yield made
