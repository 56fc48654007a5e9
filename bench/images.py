"""Pause ratio and restore ratio: allstop against bare CRIU on the same trees, in the same run."""

from __future__ import annotations

import asyncio
import shutil
import subprocess
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.standstill import StepWatch
from coordinator.api.client import OperatorClient
from coordinator.core.errors import SetupError
from coordinator.core.model import PhaseTiming, Snapshot
from coordinator.core.view import JobView
from lab.cluster import Lab
from lab.demo.options import JOB, DemoOptions
from lab.demo.stage import LabStage
from lab.demo.story import Story
from lab.deployment import STAGING, allstop_python
from lab.host import DISK, Host

ROUNDS = 5
WARM_STEPS = 20
SETTLE_STEPS = 12
EPOCHS = 10_000  # never ends by itself
START_S_MAX = 180.0
STEPS_S_MAX = 120.0
BARE_S_MAX = 300.0
CRASH_S_MAX = 30.0
CRASH_POLL_S = 0.05


@dataclass(frozen=True)
class ImageRound:
    """One round: a checkpoint and a restore, each beside the same by bare criu; then once more
    a restore, of the job after all of it was killed, so that there is nothing to clear away first.
    """

    standstill_ms: float  # seen from outside: gap between two steps, less a usual step
    held_ms: int  # as allstop reports it
    bare_dump_ms: float
    restore_ms: int  # over the running job
    anew_ms: int  # of the dead one
    bare_restore_ms: float
    bare_end_ms: float  # SIGKILL until the pids of the same trees are free
    image_bytes: int
    criu_dump_ms: int  # of the slowest worker, inside the phase DUMP
    pause_timings: dict[str, int]  # phase: milliseconds, as the coordinator saw it
    restore_timings: dict[str, int]
    anew_timings: dict[str, int]
    staging: str  # the kind of file system that the dumps were written to

    @property
    def pause_ratio(self) -> float:
        """Time the job stood still over the slowest bare dump."""
        return self.standstill_ms / self.bare_dump_ms

    @property
    def restore_ratio(self) -> float:
        """From the request until every worker runs, over SIGKILL to all and a bare restore."""
        return self.restore_ms / (self.bare_end_ms + self.bare_restore_ms)

    @property
    def anew_ratio(self) -> float:
        """Where nothing has to be ended: over the bare restore alone."""
        return self.anew_ms / self.bare_restore_ms


def measure(rounds: int = ROUNDS) -> list[ImageRound]:
    """Run the demo's job in a lab and do `rounds` rounds; takes about 20 s each."""
    root = Path(tempfile.mkdtemp(prefix="allstop-bench-"))
    try:
        options = DemoOptions(epochs=EPOCHS, spares=0, loader_workers=0)
        with Lab(root / "lab", options.busy) as lab:
            return asyncio.run(_measure(LabStage(options, lab, root), rounds))
    finally:
        shutil.rmtree(root, ignore_errors=True)


async def _measure(stage: LabStage, rounds: int) -> list[ImageRound]:
    story = Story(stage.options, stage, lambda text: None)
    story.start()
    found = []
    async with OperatorClient(stage.coordinators) as client:
        step = await story.reach(client, WARM_STEPS, START_S_MAX)
        for index in range(rounds):
            found.append(await _round(stage, story, client, step, index))
            step = await story.reach(client, found_step(await client.jobs()) + 1, STEPS_S_MAX)
    return found


async def _round(
    stage: LabStage, story: Story, client: OperatorClient, step: int, index: int
) -> ImageRound:
    hosts = [stage.lab.hosts[name] for name in story.options.busy]
    step = await story.reach(client, step + SETTLE_STEPS, STEPS_S_MAX)
    pages = [
        Path(f"/proc/{host.init_pid}/root/run/allstop/{JOB}/{worker}/page")
        for worker, host in enumerate(hosts)
    ]
    with StepWatch(pages, story.options.ranks_per_node) as watch:
        await story.reach(client, step + SETTLE_STEPS, STEPS_S_MAX)
        attempt, snapshot = await story.checkpoint(client)
        step = await story.reach(client, snapshot.step + SETTLE_STEPS, STEPS_S_MAX)
    bare_dump_ms = await asyncio.to_thread(
        _bare_dump, hosts, [worker.root_pid for worker in snapshot.workers], index
    )
    await story.reach(client, step + SETTLE_STEPS, STEPS_S_MAX)
    restored, restore_ms = await story.restore(client)
    bare_restore_ms, bare_end_ms = await asyncio.to_thread(_bare_restore, stage, snapshot)
    await story.reach(client, snapshot.step + SETTLE_STEPS, STEPS_S_MAX)
    await _crash(hosts, client)
    anew, anew_ms = await story.restore(client)
    return ImageRound(
        standstill_ms=watch.standstill_ms(),
        held_ms=attempt.pause_ms,
        bare_dump_ms=bare_dump_ms,
        restore_ms=restore_ms,
        anew_ms=anew_ms,
        bare_restore_ms=bare_restore_ms,
        bare_end_ms=bare_end_ms,
        image_bytes=snapshot.image_bytes,
        criu_dump_ms=max(worker.dump_ms for worker in snapshot.workers),
        pause_timings=_by_phase(attempt.timings),
        restore_timings=_by_phase(restored.timings),
        anew_timings=_by_phase(anew.timings),
        staging=hosts[0].run(["stat", "-f", "-c", "%T", str(STAGING)]).stdout.strip(),
    )


async def _crash(hosts: Sequence[Host], client: OperatorClient) -> None:
    """Kill the job's trees on every host, and wait until the coordinator knows it."""
    view = await _job(client)
    for worker, host in zip(view.workers, hosts, strict=True):
        host.run(["kill", "-KILL", str(worker.root_pid)])
    async with asyncio.timeout(CRASH_S_MAX):
        while (await _job(client)).state != "exited":  # noqa: ASYNC110 - nobody tells
            await asyncio.sleep(CRASH_POLL_S)


async def _job(client: OperatorClient) -> JobView:
    return next(view for view in await client.jobs() if view.job.job == JOB)


def _by_phase(timings: Iterable[PhaseTiming]) -> dict[str, int]:
    return {str(timing.phase): timing.took_ms for timing in timings}


def found_step(views: Sequence[JobView]) -> int:
    """The job's step."""
    return next(view.step for view in views if view.job.job == JOB)


def _bare_dump(hosts: Sequence[Host], root_pids: Sequence[int], index: int) -> float:
    """The slowest of the hosts, all started together; into memory, as allstop's own."""
    directory = STAGING / f"bare-{index}"
    runs = [
        _start(host, "dump", str(pid), str(directory))
        for host, pid in zip(hosts, root_pids, strict=True)
    ]
    took_ms = _at_once(runs)
    _ended(runs)
    for host in hosts:
        host.run(["rm", "-r", str(directory)])
    return took_ms


def _bare_restore(stage: LabStage, snapshot: Snapshot) -> tuple[float, float]:
    """In hosts of another lab that have the same names, addresses and paths, and nothing else.

    The job stands still meanwhile, as it does when allstop restores. Returns what the restore took
    and what the end of the restored trees took, in milliseconds.
    """
    root = stage.root / "twin"
    try:
        with Lab(root, stage.options.busy) as twin:
            runs = [
                _start(
                    twin.hosts[worker.node],
                    *("restore", str(stage.deployment.store)),
                    *(worker.manifest, worker.manifest_digest, str(DISK / "bare")),
                )
                for worker in snapshot.workers
            ]
            with stopped(stage.lab.hosts.values()):
                restore_ms, end_ms = _at_once(runs), _at_once(runs)
            _ended(runs)
            return restore_ms, end_ms
    finally:
        shutil.rmtree(root, ignore_errors=True)


def _start(host: Host, *arguments: str) -> subprocess.Popen[Any]:
    return host.popen(
        [*allstop_python("bench.bare"), *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


def _at_once(runs: Sequence[subprocess.Popen[Any]]) -> float:
    """Wait until all are ready, let them go at once, and return the longest time."""
    for run in runs:
        _said(run, "ready")
    for run in runs:
        run.stdin.write("go\n")  # type: ignore[union-attr]
        run.stdin.flush()  # type: ignore[union-attr]
    return max(float(_said(run, "took ")) for run in runs)


def _said(run: subprocess.Popen[Any], words: str) -> str:
    """The rest of the next line, which must begin so."""
    line = run.stdout.readline() if run.stdout is not None else ""
    if not line.startswith(words):
        raise SetupError(f"bare criu did not say {words!r} (exit code {run.poll()})")
    return str(line).removeprefix(words)


def _ended(runs: Sequence[subprocess.Popen[Any]]) -> None:
    for run in runs:
        run.communicate(timeout=BARE_S_MAX)
        if run.returncode != 0:
            raise SetupError(f"bare criu failed with exit code {run.returncode}")


@contextmanager
def stopped(hosts: Iterable[Host]) -> Iterator[None]:
    """They stand still meanwhile."""
    paused = []
    try:
        for host in hosts:
            host.pause()
            paused.append(host)
        yield
    finally:
        for host in paused:
            host.unpause()
