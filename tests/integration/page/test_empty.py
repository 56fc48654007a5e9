"""The page of a coordinator that nobody has come to yet says what to do."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from lab import Lab
from tests.integration.badluck.kit import Pair, until
from tests.integration.page.kit import PAGE, Viewer
from tests.integration.telemetry.kit import get
from tests.support.browser import browsing

pytestmark = [
    pytest.mark.root,
    pytest.mark.etcd,
    pytest.mark.browser,
    pytest.mark.slow,
    pytest.mark.timeout(120),
]


@pytest_asyncio.fixture(scope="module")
async def nobody(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Viewer]:
    """A control plane without a shim."""
    tmp_path = tmp_path_factory.mktemp("empty")
    with Lab(tmp_path / "lab", []) as lab:
        pair = Pair(lab, tmp_path, "criu")
        pair.deployment.start_control_plane()

        async def ready() -> bool:
            try:
                return get(lab.control, f"{PAGE}/readyz") == "ready\n"
            except Exception:  # it does not listen yet, or nobody leads
                return False

        await until("the leader", ready)
        async with browsing(lab.control, tmp_path / "profile") as browser:
            yield Viewer(pair, browser)


async def test_an_empty_page_says_what_to_do(nobody: Viewer) -> None:
    await nobody.go()
    assert "allstop shim run" in await nobody.sees("No job has come yet")
    assert {"0"} == set((await nobody.browser.text(".tiles")).split()) & set("0123456789")
    await nobody.reads_well("no-jobs")
    await nobody.go("#/nodes")
    assert "allstop shim --coordinator" in await nobody.sees("No shim has attached yet")
    await nobody.go("#/jobs/gone")
    await nobody.sees("No job of this name is known")
    await nobody.go("#/jobs/%")
    await nobody.sees("No job of this name is known")


async def test_the_page_says_when_nobody_answers_and_comes_back(nobody: Viewer) -> None:
    await nobody.go()
    nobody.pair.deployment.stop_control_plane()
    await nobody.sees("the coordinator does not answer; trying again", "#status")
    await nobody.sees("No job has come yet")  # what was known stays
    nobody.pair.deployment.start_control_plane()
    await nobody.sees("live", "#status")
