"""The deployment that the tests of this directory share for as long as it is sound."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from lab import Lab
from tests.integration.badluck.kit import NODES, Pair
from tests.integration.badluck.sharing import kept

Start = Callable[..., Awaitable[Pair]]


@pytest_asyncio.fixture(scope="package")
async def _shared(
    tmp_path_factory: pytest.TempPathFactory, criu_path: str
) -> AsyncIterator[Callable[[], Awaitable[Pair]]]:
    def make(stack: ExitStack) -> Pair:
        root = tmp_path_factory.mktemp("pair")
        lab = stack.enter_context(Lab(root / "lab", [*NODES, "n2"]))
        return Pair(lab, root, criu_path)

    async with kept(make) as sound:
        yield sound


@pytest_asyncio.fixture
async def pair(_shared: Callable[[], Awaitable[Pair]]) -> AsyncIterator[Pair]:
    """The job on n0 and n1, stepping; n2 is a host without anything."""
    pair = await _shared()
    yield pair
    pair.behave()


@pytest_asyncio.fixture
async def start_pair(tmp_path: Path, criu_path: str) -> AsyncIterator[Start]:
    """`await start_pair("n2", spares=("n2",))` gives a pair of the test's own with more hosts."""
    with ExitStack() as labs:
        made: list[Pair] = []

        async def start(*hosts: str, spares: tuple[str, ...] = (), **fields: Any) -> Pair:
            lab = labs.enter_context(Lab(tmp_path / "lab", [*NODES, *hosts]))
            made.append(Pair(lab, tmp_path, criu_path, **fields))
            await made[-1].start(spares=spares)
            return made[-1]

        yield start
        for pair in made:
            await pair.stop()
