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

import numpy as np
from blake3 import blake3

from coordinator.api.client import OperatorClient
from coordinator.core.errors import SetupError
from coordinator.core.model import Snapshot
from lab.cluster import Lab
from lab.demo.options import DemoOptions
from lab.demo.stage import LabStage
from lab.demo.story import Story
from worker_shim.images.chunks.packs import NotPacked
from worker_shim.images.chunks.pagemap import PAGE_BYTES
from worker_shim.images.chunks.reading import ChunkReader, find_manifest, reads
from worker_shim.images.objects.port import ObjectStore
from worker_shim.images.opening import open_store
from worker_shim.images.sealing import Open

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
    chunk_bytes: int  # of the first, before they are compressed
    page_bytes: int  # of the first, as different pages: what cutting at every page would leave


def measure() -> list[Sizes]:
    """Every job in a lab of its own; takes a minute each."""
    return [_one(name, options) for name, options in JOBS.items()]


def _one(name: str, options: DemoOptions) -> Sizes:
    root = Path(tempfile.mkdtemp(prefix="allstop-bench-"))
    try:
        with Lab(root / "lab", options.busy) as lab:
            stage = LabStage(options, lab, root)
            first, second = asyncio.run(_snapshots(stage))
            chunks, pages = _different(open_store(str(stage.deployment.store)).objects, first)
    finally:
        shutil.rmtree(root, ignore_errors=True)
    return Sizes(
        *(name, options.world_size),
        *(first.image_bytes, first.stored_bytes, second.image_bytes, second.stored_bytes),
        *(chunks, pages),
    )


def _different(objects: ObjectStore, snapshot: Snapshot) -> tuple[int, int]:
    """Bytes of the chunks that a snapshot's attempt stored, and of the different pages in them."""
    chunks, pages = 0, set[bytes]()
    for worker in snapshot.workers:
        found, layout = find_manifest(objects, worker.manifest, worker.manifest_digest, Open())
        if layout is None:
            raise SetupError(f"{found.action} is not in chunks")
        own = f"/packs/{worker.worker}."
        mine = [number for number, pack in enumerate(layout.packs) if own in pack.name]
        reader = ChunkReader(objects, layout, Open())
        for read in reads(layout, np.flatnonzero(np.isin(layout.pack, mine))):
            for _, data in reader.chunks(read):
                if isinstance(data, NotPacked):
                    raise SetupError(f"a chunk of {read.pack} is {data}")
                chunks += len(data)
                view = memoryview(data)
                for at in range(0, len(view), PAGE_BYTES):
                    pages.add(blake3(view[at : at + PAGE_BYTES]).digest()[:12])
    return chunks, len(pages) * PAGE_BYTES


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
    alone = next((one for one in found if one.ranks == 1), None)
    for one in found:
        share = one.first_stored_bytes / one.first_dumped_bytes
        yield (
            f"stored: {one.job}",
            f"{one.first_stored_bytes / 1e6:.0f} of {one.first_dumped_bytes / 1e6:.0f} MB dumped, "
            f"{share:.0%}",
            "",
        )
        if alone is not None and one is not alone:
            differs = one.page_bytes - alone.page_bytes
            floor = alone.page_bytes + differs
            yield (
                "  of it chunks, before compression",
                f"{one.chunk_bytes / 1e6:.0f} MB, {one.chunk_bytes / floor:.2f} of the floor",
                f"{alone.page_bytes / 1e6:.0f} MB of one rank and {differs / 1e6:.0f} MB of pages "
                f"that differ; goal ≤ {(COST_GOAL * alone.page_bytes + differs) / 1e6:.0f} MB",
            )
        yield (
            f"  the next snapshot, {STEPS_BETWEEN} steps on",
            f"{one.second_stored_bytes / 1e6:.0f} MB",
            f"{one.second_stored_bytes / one.first_stored_bytes:.0%} of the first",
        )
