"""A whole run: set the stage, drive, check, clean up, and sum up."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol

from coordinator.core.errors import AllstopError
from coordinator.core.model import AttemptRecord, AttemptState, RestoreRecord, RestoreState
from lab import Lab
from lab.demo.run import interruptible
from lab.errors import LabError
from lab.memory import free_memory_bytes, in_memory
from tests.chaos import checker
from tests.chaos.driver import Driver
from tests.chaos.history import History
from tests.chaos.options import HOSTS, NODES, ChaosOptions
from tests.chaos.seen import Seen, lines_of, read_dumps, read_locks, whole_history
from tests.chaos.training import undisturbed
from tests.chaos.world import NeverCame, World
from worker_shim.criu.binary import find_criu

STORE_BYTES_MIN = 10 << 30  # with less free memory the images go to the disk
MONITORS_S = 0.5  # until the last line of a monitor is written


def run_chaos(options: ChaosOptions) -> dict[str, Any]:
    """Play one run and return its summary; blocks.

    Nothing is left behind, also on Ctrl-C and SIGTERM, but what `options.keep` asks for.
    """
    with interruptible() as interruption, stage() as root:
        history = History(root / "history.jsonl")
        history.note("begin", f"seed {options.seed}, {options.minutes:g} minutes")
        try:
            with Lab(root / "lab", HOSTS) as lab:
                world = World(lab, root, str(find_criu()), options, history)
                driver = Driver(world, options, history)
                seen = asyncio.run(interruption.obeyed_by(play(world, driver, history)))
            steps = max(world.diaries.last().values())
            most = max(step.step for own in seen.steps.values() for step in own)
            history.note("undisturbed", f"the same job undisturbed, up to step {most}")
            seen.undisturbed = undisturbed(options, root / "undisturbed", most)
            for sentence in checker.check(seen):
                history.violation(sentence)
            return summary(options, driver, history, seen, steps)
        finally:
            keep(root, options.keep)


class Plays(Protocol):
    """Who drives a run."""

    async def play(self) -> None:
        """Everything; raises when it does not come to its end."""


@contextlib.asynccontextmanager
async def played(
    world: World, driver: Plays, history: History, *, settle_s: float = 0.0
) -> AsyncIterator[Seen]:
    """Start and drive; gives what etcd and the diaries have seen, however far it came."""
    try:
        try:
            await world.start()
            await driver.play()
        except (NeverCame, AllstopError, LabError) as error:
            history.violation(f"the run did not come to its end: {error}")
        await asyncio.sleep(settle_s)
        yield Seen(
            etcd=await whole_history(world.kv),
            steps={rank: list(steps) for rank, steps in world.diaries.look().items()},
        )
    finally:
        await world.close()


async def play(world: World, driver: Driver, history: History) -> Seen:
    """Everything, and what the monitors have seen beside it."""
    async with played(world, driver, history, settle_s=MONITORS_S) as seen:
        return replace(
            seen,
            dumps=read_dumps(world.root / "criu", NODES),
            locks=read_locks(world.root / "locks", NODES),
            dump_s={
                (entry["snapshot"], worker): seconds
                for entry in history.entries
                if entry["what"] == "images"
                for worker, seconds in entry["dump_s"].items()
            },
            ghosts=lines_of(world.root / "ghosts"),
        )


def summary(
    options: ChaosOptions, driver: Driver, history: History, seen: Seen, steps: int
) -> dict[str, Any]:
    """The numbers of a run, for its last line."""
    attempts = list(checker.finals(seen, AttemptRecord).values())
    restores = list(checker.finals(seen, RestoreRecord).values())
    if unverified := driver.unverified():
        history.violation(f"snapshots that were never restored: {unverified}")
    return {
        "attempts": len(attempts),
        "committed": sum(one.state is AttemptState.COMMITTED for one in attempts),
        "aborted": sum(one.state is AttemptState.ABORTED for one in attempts),
        "faults_injected": sum(driver.injected.values()),
        "kinds": dict(sorted(driver.injected.items())),
        "restores": sum(one.state is RestoreState.RUNNING for one in restores),
        "restores_failed": sum(one.state is RestoreState.FAILED for one in restores),
        "verified": len(driver.verified),
        "steps_compared": sum(len(own) for own in seen.steps.values()),
        "violations": len(history.violations),
        "jobs_hurt": len(history.hurt),
        "seed": options.seed,
        "minutes": options.minutes,
    }


@contextlib.contextmanager
def stage(name: str = "chaos") -> Iterator[Path]:
    """A private directory for all that is written; removed at the end. The store is in memory."""
    parent = os.environ.get("ALLSTOP_CHAOS_DIRECTORY") or "/var/tmp"
    root = Path(tempfile.mkdtemp(prefix=f"allstop-{name}-", dir=parent))
    store: Callable[[], contextlib.AbstractContextManager[None]] = contextlib.nullcontext
    if free_memory_bytes() > STORE_BYTES_MIN:
        (root / "store").mkdir()
        store = lambda: in_memory(root / "store", free_memory_bytes() // 3)  # noqa: E731
    try:
        with store():
            yield root
    finally:
        shutil.rmtree(root, ignore_errors=True)


def keep(root: Path, where: Path | None) -> None:
    """Copy history, diaries and logs there, images left out."""
    if where is None:
        return
    where.mkdir(parents=True, exist_ok=True)
    for name in ("history.jsonl", "ghosts"):
        if (root / name).exists():
            shutil.copy(root / name, where / name)
    for name in ("logs", "steps", "criu", "locks"):
        if (root / name).exists():
            shutil.copytree(root / name, where / name, dirs_exist_ok=True)
