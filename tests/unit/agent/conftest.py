from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.unit.agent.rig import Rig


@pytest.fixture
async def rig(tmp_path: Path) -> AsyncIterator[Rig]:
    """An agent with a running worker and fake drivers."""
    made = Rig(tmp_path)
    await made.launch()
    yield made
    made.network.broken.clear()
    made.process.broken.clear()
    await made.agent.stop()
