"""What the image store needs of what was dumped: ranks of one job, and its next snapshot.

The demo's job with its loader workers; the same without them as data-parallel replicas; and one
rank alone, against which the replicas stand.
"""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from coordinator.api.client import OperatorClient
from coordinator.core.model import Snapshot
from lab.cluster import Lab
from lab.demo.options import DemoOptions
from lab.demo.stage import LabStage
from lab.demo.story import Story

EPOCHS = 10_000  # never ends by itself
WARM_STEPS = 20
STEPS_BETWEEN = 20
START_S_MAX = 240.0
COST_GOAL = 1.2  # of N replicas, in times of one rank, but for what really differs

JOBS = {
    "one rank": DemoOptions(1, 1, 0, epochs=EPOCHS, loader_workers=0),
    "demo, 4 ranks with loader workers": DemoOptions(2, 2, 0, epochs=EPOCHS, loader_workers=1),
    "8 replicas": DemoOptions(2, 4, 0, epochs=EPOCHS, loader_workers=0),
}


@dataclass(frozen=True)
class Sizes:
    """One job's two snapshots, some steps apart."""

    job: str
    ranks: int
    first_dumped_bytes: int
    first_stored_bytes: int
    second_dumped_bytes: int
    second_stored_bytes: int


def measure() -> list[Sizes]:
    """Every job in a lab of its own; takes a minute each."""
    return [_one(name, options) for name, options in JOBS.items()]


def _one(name: str, options: DemoOptions) -> Sizes:
    root = Path(tempfile.mkdtemp(prefix="allstop-bench-"))
    try:
        with Lab(root / "lab", options.busy) as lab:
            first, second = asyncio.run(_snapshots(LabStage(options, lab, root)))
    finally:
        shutil.rmtree(root, ignore_errors=True)
    return Sizes(
        *(name, options.world_size),
        *(first.image_bytes, first.stored_bytes, second.image_bytes, second.stored_bytes),
    )


async def _snapshots(stage: LabStage) -> tuple[Snapshot, Snapshot]:
    story = Story(stage.options, stage, lambda text: None)
    story.start()
    async with OperatorClient(stage.coordinators) as client:
        await story.reach(client, WARM_STEPS, START_S_MAX)
        _, first = await story.checkpoint(client)
        await story.reach(client, first.step + STEPS_BETWEEN, START_S_MAX)
        _, second = await story.checkpoint(client)
    return first, second


def rows(found: Sequence[Sizes]) -> Iterable[tuple[str, str, str]]:
    """For the table."""
    alone = next((one.first_stored_bytes for one in found if one.ranks == 1), 0)
    for one in found:
        share = one.first_stored_bytes / one.first_dumped_bytes
        against = "" if one.ranks == 1 or not alone else f"{one.first_stored_bytes / alone:.2f} of"
        yield (
            f"stored: {one.job}",
            f"{one.first_stored_bytes / 1e6:.0f} of {one.first_dumped_bytes / 1e6:.0f} MB dumped, "
            f"{share:.0%}",
            f"{against} one rank ({alone / 1e6:.0f} MB)" if against else "",
        )
        yield (
            f"  the next snapshot, {STEPS_BETWEEN} steps on",
            f"{one.second_stored_bytes / 1e6:.0f} MB",
            f"{one.second_stored_bytes / one.first_stored_bytes:.0%} of the first",
        )
