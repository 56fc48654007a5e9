"""A whole soak: set the stage, drive, check, clean up, and sum up."""

from __future__ import annotations

import asyncio
import sys
import time
from collections import Counter
from statistics import median
from typing import Any

from coordinator.core.errors import StoreError
from coordinator.core.model import RestoreRecord, RestoreState, Snapshot
from lab import Lab
from lab.demo.run import interruptible
from tests.chaos.checker import every_step_is_the_same, finals
from tests.chaos.history import History
from tests.chaos.options import HOSTS
from tests.chaos.run import keep, played, stage
from tests.chaos.seen import Seen
from tests.chaos.training import read, undisturbed
from tests.soak import checks
from tests.soak.driver import Driver
from tests.soak.options import SoakOptions
from tests.soak.world import SoakWorld
from worker_shim.criu.binary import find_criu


def run_soak(options: SoakOptions) -> dict[str, Any]:
    """Play one soak and return its summary; blocks.

    Nothing is left behind, also on Ctrl-C and SIGTERM, but what `options.keep` asks for.
    """
    with interruptible() as interruption, stage("soak") as root:
        history = History(root / "history.jsonl")
        history.note("begin", f"seed {options.seed}, {options.minutes:g} minutes")
        try:
            with Lab(root / "lab", HOSTS) as lab:
                world = SoakWorld(lab, root, str(find_criu()), options, history)
                driver = Driver(world, options, history)
                seen = asyncio.run(interruption.obeyed_by(play(world, driver, history)))
                ended = world.ended_with()
            history.note("undisturbed", f"the same job undisturbed, {options.steps} steps")
            result = root / "undisturbed.json"
            try:
                seen.undisturbed = undisturbed(options, root / "undisturbed", options.steps, result)
            except AssertionError as error:
                history.violation(str(error))
            exact = bool(ended) and ended.get("digest") == read(result).get("digest")
            if not exact:
                history.violation(f"the job ended with {ended}, undisturbed with {read(result)}")
            exact = exact and not list(every_step_is_the_same(seen))
            for sentence in checks.check(seen, driver.killer.taken, options):
                history.violation(sentence)
            if history.violations:
                tell(seen, history)
            return summary(options, driver, history, seen, exact)
        finally:
            keep(root, options.keep)


async def play(world: SoakWorld, driver: Driver, history: History) -> Seen:
    """Everything, and what was seen of it."""
    async with played(world, driver, history) as seen:
        return seen


def tell(seen: Seen, history: History) -> None:
    """What was done to whom and what the job's story says of it, in one order of time."""
    lines = [(e["unix_ns"] / 1e9, e["text"].strip()) for e in history.entries if e["text"]]
    try:
        lines += [(line.unix_s, f"story: {line.text}") for line in checks.story(seen)]
    except StoreError as error:
        history.violation(f"the story cannot be read: {error}")
    for unix_s, text in sorted(lines):
        at = time.strftime("%H:%M:%S", time.gmtime(unix_s))
        print(f"{at}.{int(unix_s * 10) % 10}  {text}", file=sys.stderr)
    for violation in history.violations:
        print(f"VIOLATION: {violation}", file=sys.stderr, flush=True)


def summary(
    options: SoakOptions, driver: Driver, history: History, seen: Seen, exact: bool
) -> dict[str, Any]:
    """The numbers of a run, for its last line."""
    restores = list(finals(seen, RestoreRecord).values())
    steps, taken, window = seen.steps[0], driver.killer.taken, driver.window
    times = [one.seconds for one in checks.outages(steps, taken)]
    of_rank_0 = [one for one in checks.begun(seen) if one.rank == 0]
    return {
        "kills": len(taken),
        "recoveries": sum(one.state is RestoreState.RUNNING for one in restores),
        "steps_repeated": sum(one.repeated for one in of_rank_0),
        "checkpoints": len(finals(seen, Snapshot)),
        "goodput": round(checks.goodput(steps, window.begin_ns, window.end_ns), 3),
        "bit_exact": exact,
        "recovery_median_s": round(median(times), 1) if times else 0.0,
        "recovery_max_s": round(max(times, default=0.0), 1),
        "restores_failed": sum(one.state is RestoreState.FAILED for one in restores),
        "kinds": dict(sorted(Counter(one.kind for one in taken).items())),
        "nobody_to_take": driver.killer.nobody,
        "steps": options.steps,
        "violations": len(history.violations),
        "seed": options.seed,
        "minutes": options.minutes,
        "mtbf_s": options.mtbf_s,
    }
