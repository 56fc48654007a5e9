"""Every rank a tree of its own against one torchrun tree of the same ranks, on one node.

The same script, the same number of ranks, one after the other in one run: how long the job stands
still for a checkpoint, and how long a restore takes. CRIUs run in parallel, one for each core.
"""

from __future__ import annotations

import asyncio
import shutil
import statistics
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from bench.images import EPOCHS, SETTLE_STEPS, START_S_MAX, STEPS_S_MAX, WARM_STEPS
from bench.standstill import StepWatch
from coordinator.api.client import OperatorClient
from coordinator.core.model import Phase, PhaseTiming
from lab.cluster import Lab
from lab.demo.options import JOB, DemoOptions
from lab.demo.stage import LabStage
from lab.demo.story import Story

SIZES = (2, 4)
ROUNDS = 3


@dataclass(frozen=True)
class RanksRound:
    """One checkpoint and one restore of the job."""

    standstill_ms: float  # seen from outside, see `standstill`
    dump_ms: int  # of the phase DUMP, as the coordinator saw it
    restore_ms: int  # from the request until every worker runs
    image_bytes: int


@dataclass(frozen=True)
class RanksCompared:
    """Medians of both ways of starting so many ranks."""

    ranks: int
    torchrun: RanksRound
    own_trees: RanksRound

    @property
    def pause_ratio(self) -> float:
        """Below 1 the trees of their own stand still for a shorter time."""
        return self.own_trees.standstill_ms / self.torchrun.standstill_ms

    @property
    def restore_ratio(self) -> float:
        """Below 1 the trees of their own are back earlier."""
        return self.own_trees.restore_ms / self.torchrun.restore_ms

    def to_fields(self) -> dict[str, Any]:
        """As it stands in the JSON object."""
        ratios = {"pause_ratio": self.pause_ratio, "restore_ratio": self.restore_ratio}
        return {**asdict(self), **ratios}


def measure(sizes: Sequence[int] = SIZES, rounds: int = ROUNDS) -> list[RanksCompared]:
    """Measure both ways in turns for each number of ranks; takes some minutes for each number.

    In turns, since a machine that others use is another one a minute later.
    """
    compared = []
    for ranks in sizes:
        turns = [
            (_of_one_way(ranks, own_trees=False), _of_one_way(ranks, own_trees=True))
            for _ in range(rounds)
        ]
        torchrun, own_trees = zip(*turns, strict=True)
        compared.append(RanksCompared(ranks, _median(torchrun), _median(own_trees)))
    return compared


def rows(found: Sequence[RanksCompared]) -> list[tuple[str, str, str]]:
    """Lines of the table for people."""
    told: list[tuple[str, str, str]] = []
    for one in found:
        mine, theirs = one.own_trees, one.torchrun
        size = f"{mine.image_bytes >> 20} MiB, torchrun's {theirs.image_bytes >> 20} MiB"
        told += [
            (
                f"{one.ranks} ranks, a tree each: job stood still",
                f"{mine.standstill_ms:.0f} ms (DUMP {mine.dump_ms}), ratio {one.pause_ratio:.2f}",
                f"one torchrun tree {theirs.standstill_ms:.0f} ms (DUMP {theirs.dump_ms})",
            ),
            (
                f"{one.ranks} ranks, a tree each: restore",
                f"{mine.restore_ms} ms, ratio {one.restore_ratio:.2f}",
                f"one torchrun tree {theirs.restore_ms} ms; images {size}",
            ),
        ]
    return told


def _of_one_way(ranks: int, *, own_trees: bool) -> RanksRound:
    root = Path(tempfile.mkdtemp(prefix="allstop-bench-"))
    options = DemoOptions(
        nodes=1,
        ranks_per_node=ranks,
        spares=0,
        epochs=EPOCHS,
        loader_workers=0,
        own_trees=own_trees,
    )
    try:
        with Lab(root / "lab", options.busy) as lab:
            return asyncio.run(_started(LabStage(options, lab, root)))
    finally:
        shutil.rmtree(root, ignore_errors=True)


async def _started(stage: LabStage) -> RanksRound:
    story = Story(stage.options, stage, lambda text: None)
    story.start()
    async with OperatorClient(stage.coordinators) as client:
        step = await story.reach(client, WARM_STEPS, START_S_MAX)
        return await _round(stage, story, client, step)


async def _round(stage: LabStage, story: Story, client: OperatorClient, step: int) -> RanksRound:
    options = stage.options
    (host,) = (stage.lab.hosts[name] for name in options.busy)
    workers = options.ranks_per_node if options.own_trees else 1
    jobs = Path(f"/proc/{host.init_pid}/root/run/allstop/{JOB}")
    step = await story.reach(client, step + SETTLE_STEPS, STEPS_S_MAX)
    pages = [jobs / str(worker) / "page" for worker in range(workers)]
    with StepWatch(pages, options.ranks_per_node) as watch:
        await story.reach(client, step + SETTLE_STEPS, STEPS_S_MAX)
        attempt, snapshot = await story.checkpoint(client)
        await story.reach(client, snapshot.step + SETTLE_STEPS, STEPS_S_MAX)
    _, restore_ms = await story.restore(client)
    return RanksRound(
        standstill_ms=watch.standstill_ms(),
        dump_ms=_took(attempt.timings, Phase.DUMP),
        restore_ms=restore_ms,
        image_bytes=snapshot.image_bytes,
    )


def _took(timings: Sequence[PhaseTiming], phase: Phase) -> int:
    return sum(timing.took_ms for timing in timings if timing.phase is phase)


def _median(found: Sequence[RanksRound]) -> RanksRound:
    return RanksRound(
        standstill_ms=statistics.median(one.standstill_ms for one in found),
        dump_ms=round(statistics.median(one.dump_ms for one in found)),
        restore_ms=round(statistics.median(one.restore_ms for one in found)),
        image_bytes=round(statistics.median(one.image_bytes for one in found)),
    )
