"""A pair with two spare nodes, one of them without CRIU, and somebody who has the page open."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, ExitStack

import pytest
import pytest_asyncio

from lab import Lab
from tests.integration.badluck.kit import NODES, Pair, until
from tests.integration.page.kit import SPARE, UNFIT, Viewer
from tests.support.browser import browsing


@pytest_asyncio.fixture(scope="package")
async def viewer(tmp_path_factory: pytest.TempPathFactory, criu_path: str) -> AsyncIterator[Viewer]:
    """The job steps, every node is attached, and the page is open."""
    root = tmp_path_factory.mktemp("page")
    with ExitStack() as labs:
        lab = labs.enter_context(Lab(root / "lab", [*NODES, UNFIT, SPARE]))
        pair = Pair(lab, root, criu_path)
        await pair.start(spares=(SPARE,))
        pair.deployment.options = ("--criu", "/no/such/criu")
        pair.deployment.start_spare(lab.hosts[UNFIT])

        async def attached() -> bool:
            return len(await pair.client.nodes()) == 4

        await until("four nodes", attached)
        async with AsyncExitStack() as stack:
            browser = await stack.enter_async_context(browsing(lab.control, root / "profile"))
            yield Viewer(pair, browser)
        await pair.stop()
