"""A whole checkpoint and restore of a training job: by allstop, and by hand on the same tree."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import AsyncGenerator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from bench.gpu.job import HOST, Job
from bench.gpu.machine import Machine
from bench.gpu.ranks import ROOT
from bench.images import stopped
from bench.standstill import StepWatch
from coordinator.api.values import ActionEvent
from coordinator.core.errors import SetupError
from coordinator.core.model import Snapshot
from lab.cluster import Lab
from lab.deployment import STAGING, allstop_python
from lab.host import DISK, Host

JOB = "gpu-bench"
RANKS = 2
SETTLE_STEPS = 8
BY_HAND_S = 600.0
MODULE = "bench.gpu.bare"


@dataclass(frozen=True)
class Compared:
    """Milliseconds. By hand: every process locked, saved, dumped, restored, unlocked, or back."""

    engine: str
    ranks: int
    mib: int  # of each
    standstill_ms: float  # gap between two steps, less a usual one
    bare_dump_ms: float
    restore_ms: int  # over the running job, from the request until it runs
    bare_end_ms: float  # off its devices, and until all pids are free
    bare_restore_ms: float
    gpu_bytes: int
    image_bytes: int
    pause_timings: dict[str, int]
    restore_timings: dict[str, int]

    @property
    def pause_ratio(self) -> float:
        """Above 1 allstop takes longer than the hand."""
        return self.standstill_ms / self.bare_dump_ms

    @property
    def restore_ratio(self) -> float:
        """Above 1 allstop takes longer than the hand."""
        return self.restore_ms / (self.bare_end_ms + self.bare_restore_ms)

    def to_fields(self) -> dict[str, Any]:
        """As it stands in the file."""
        ratios = {"pause_ratio": self.pause_ratio, "restore_ratio": self.restore_ratio}
        return {**asdict(self), **ratios}


async def compare(machine: Machine, engine: str, root: Path, *, mib: int, criu: str) -> Compared:
    """One checkpoint and one restore by each; raises SetupError where something fails."""
    with Lab(root / "lab", [HOST]) as lab:
        options = ("--mib", str(mib), "--no-digests", "--pace-s", "0.02")
        async with Job(JOB, lab, root, RANKS, criu) as job:
            job.start(machine, *options, ALLSTOP_GPU_ENGINE=engine, ALLSTOP_NCCL="none")
            await job.goes_on(SETTLE_STEPS)
            return await _compared(job, engine, root, mib)


async def _compared(job: Job, engine: str, root: Path, mib: int) -> Compared:
    page = Path(f"/proc/{job.host.init_pid}/root/run/allstop/{JOB}/0/page")
    with StepWatch([page], RANKS) as watch:
        await job.goes_on(SETTLE_STEPS)
        taken = await _last(job.client.checkpoint(JOB))
        await job.goes_on(SETTLE_STEPS)
    assert taken.attempt is not None
    if (snapshot := taken.snapshot) is None:
        raise SetupError(f"the checkpoint did not commit: {taken.reason}")
    (worker,) = snapshot.workers
    dump = ("dump", engine, str(worker.root_pid), str(STAGING / "by-hand"))
    (dump_ms,) = await asyncio.to_thread(_by_hand, job.host, *dump)
    await job.goes_on(SETTLE_STEPS)
    restored = await _last(job.client.restore(JOB))
    assert restored.restore is not None
    restore_ms, end_ms = await asyncio.to_thread(_restore_by_hand, job, snapshot, engine, root)
    await job.goes_on(SETTLE_STEPS)
    return Compared(
        engine=engine,
        ranks=RANKS,
        mib=mib,
        standstill_ms=watch.standstill_ms(),
        bare_dump_ms=dump_ms,
        restore_ms=restored.elapsed_ms,
        bare_end_ms=end_ms,
        bare_restore_ms=restore_ms,
        gpu_bytes=worker.gpu_bytes,
        image_bytes=snapshot.image_bytes,
        pause_timings={str(each.phase): each.took_ms for each in taken.attempt.timings},
        restore_timings={str(each.phase): each.took_ms for each in restored.restore.timings},
    )


async def _last(events: AsyncGenerator[ActionEvent, None]) -> ActionEvent:
    last = None
    async for event in events:
        last = event
    if last is None:
        raise SetupError("the coordinator said nothing")
    return last


def _restore_by_hand(job: Job, snapshot: Snapshot, engine: str, root: Path) -> tuple[float, float]:
    """In another host of the same name, address and paths, while the job stands still."""
    (worker,) = snapshot.workers
    place = (str(job.deployment.store), worker.manifest, worker.manifest_digest)
    pids = map(str, worker.gpu_pids)
    with Lab(root / "twin", [HOST]) as twin, stopped([job.host]):
        restore_ms, end_ms = _by_hand(
            twin.hosts[HOST], "restore", engine, *place, str(DISK / "by-hand"), *pids
        )
    shutil.rmtree(root / "twin", ignore_errors=True)
    return restore_ms, end_ms


def _by_hand(host: Host, *arguments: str) -> list[float]:
    """What `bare` took, each time it was told to go."""
    line = [*allstop_python(MODULE), *arguments]
    done = host.run(line, BY_HAND_S, cwd=ROOT, stdin="go\ngo\n")
    words = "took "
    return [
        float(line.removeprefix(words))
        for line in done.stdout.splitlines()
        if line.startswith(words)
    ]


def rows_of(found: list[Compared]) -> list[tuple[str, str, str]]:
    """For people."""
    told = []
    for one in found:
        name = f"{one.ranks} ranks of {one.mib} MiB by {one.engine}"
        by_hand = f"{one.bare_end_ms:.0f} + {one.bare_restore_ms:.0f} ms"
        told += [
            (
                f"{name}: stood still",
                f"{one.standstill_ms:.0f} ms, ratio {one.pause_ratio:.2f}",
                f"by hand {one.bare_dump_ms:.0f} ms",
            ),
            (
                f"{name}: restore over the job",
                f"{one.restore_ms} ms, ratio {one.restore_ratio:.2f}",
                f"by hand {by_hand}",
            ),
        ]
    return told
