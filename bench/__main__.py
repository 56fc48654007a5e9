"""`python -m bench [--json] [--only PART] [--rounds N]`: measure and print.

Every figure stands beside its floor and its goal; one that misses its goal is printed all the same.
With --json the last line on stdout is one JSON object.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import platform
import statistics
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from typing import Any

from rich.console import Console
from rich.table import Table

from bench import chunks, coordination, fetching, images, ranks, sharing
from coordinator.core.errors import SetupError
from worker_shim.hook import measure as hook

HOOK_GOAL_NS = 1000.0
PAUSE_GOAL = 1.15  # with staging in memory
RESTORE_GOAL = 1.3
PARTS = ("hook", "chunks", "images", "fetching", "sharing", "ranks", "coordination")
NEED_ROOT = ("images", "sharing", "ranks")

Note = Callable[[str], None]


def measure_hook() -> dict[str, Any]:
    """What the hook costs a step when nothing is asked."""
    return {**asdict(hook.measure()), "goal_ns": HOOK_GOAL_NS}


def measure_images(rounds: int) -> dict[str, Any]:
    """Pause and restore against bare criu, medians of `rounds`."""
    found = images.measure(rounds)
    return {
        "rounds": [
            {
                **asdict(one),
                "pause_ratio": one.pause_ratio,
                "restore_ratio": one.restore_ratio,
                "anew_ratio": one.anew_ratio,
            }
            for one in found
        ],
        "pause_ratio": statistics.median(one.pause_ratio for one in found),
        "pause_goal": PAUSE_GOAL,
        "restore_ratio": statistics.median(one.restore_ratio for one in found),
        "anew_ratio": statistics.median(one.anew_ratio for one in found),
        "restore_goal": RESTORE_GOAL,
        "image_bytes": found[-1].image_bytes,
        "staging": found[-1].staging,
    }


def measure_coordination(console: Console, note: Note) -> list[coordination.Coordination]:
    """Request to commit with instant drivers; sizes that cannot be measured here are left out."""
    sizes = []
    for shims in coordination.SIZES:
        note(f"coordination, {shims} shims")
        try:
            sizes += asyncio.run(coordination.measure((shims,)))
        except SetupError as error:
            console.print(f"coordination, {shims} shims: left out, {error}")
    return sizes


def phases(timings: dict[str, int]) -> str:
    """Every phase with its milliseconds, in order."""
    return ", ".join(f"{phase} {took_ms}" for phase, took_ms in timings.items())


def image_rows(image: dict[str, Any]) -> Iterator[tuple[str, str, str]]:
    """Pause and restore, round by round, then the medians."""
    if not image:
        return
    for index, one in enumerate(image["rounds"]):
        yield (
            f"round {index}: job stood still",
            f"{one['standstill_ms']:.0f} ms, ratio {one['pause_ratio']:.2f}",
            f"bare criu dump {one['bare_dump_ms']:.0f} ms",
        )
        floor = f"of which criu {one['criu_dump_ms']} ms"
        yield "  phases, ms", phases(one["pause_timings"]), floor
        yield (
            f"round {index}: restore over the job",
            f"{one['restore_ms']} ms, ratio {one['restore_ratio']:.2f}",
            f"SIGKILL {one['bare_end_ms']:.0f} + bare criu restore {one['bare_restore_ms']:.0f} ms",
        )
        yield "  phases, ms", phases(one["restore_timings"]), ""
        yield (
            f"round {index}: of a dead job",
            f"{one['anew_ms']} ms, ratio {one['anew_ratio']:.2f}",
            f"bare criu restore {one['bare_restore_ms']:.0f} ms",
        )
        yield "  phases, ms", phases(one["anew_timings"]), ""
    yield "staging is on", image["staging"], "tmpfs: in memory"
    yield "pause ratio, median", f"{image['pause_ratio']:.2f}", f"≤ {PAUSE_GOAL}"
    yield "restore over the job, median", f"{image['restore_ratio']:.2f}", f"≤ {RESTORE_GOAL}"
    yield "restore of a dead job", f"{image['anew_ratio']:.2f}", f"≤ {RESTORE_GOAL}"


def show(found: dict[str, Any], console: Console) -> None:
    """Print what was measured, for people."""
    table = Table("figure", "measured", "floor or goal", box=None, padding=(0, 2, 0, 0))
    if "hook" in found:
        cost = found["hook"]
        goal = f"goal ≤ {HOOK_GOAL_NS:.0f} ns"
        table.add_row("hook, one Optimizer.step", f"{cost['optimizer_pair_ns']:.0f} ns", goal)
        table.add_row("hook, one step() call", f"{cost['step_ns']:.0f} ns", goal)
    if "chunks" in found:
        for row in chunks.rows(chunks.Speed(**found["chunks"])):
            table.add_row(*row)
    for row in image_rows(found.get("images", {})):
        table.add_row(*row)
    for row in fetching.rows([fetching.Fetched(**one) for one in found.get("fetching", ())]):
        table.add_row(*row)
    for row in sharing.rows([sharing.Sizes(**one) for one in found.get("sharing", ())]):
        table.add_row(*row)
    for row in ranks.rows(found.get("ranks", ())):
        table.add_row(*row)
    for row in coordination.rows(found.get("coordination", ())):
        table.add_row(*row)
    console.print(table)


def measure(chosen: Sequence[str], rounds: int, console: Console, note: Note) -> dict[str, Any]:
    """What was chosen, one part after another."""
    found: dict[str, Any] = {}
    if "hook" in chosen:
        note("hook")
        found["hook"] = measure_hook()
    if "chunks" in chosen:
        note("chunks")
        found["chunks"] = asdict(chunks.measure())
    if "images" in chosen:
        note(f"pause and restore, {rounds} rounds")
        found["images"] = measure_images(rounds)
    if "fetching" in chosen:
        note("fetches from object storage")
        found["fetching"] = [asdict(one) for one in fetching.measure()]
    if "sharing" in chosen:
        note("what snapshots share")
        found["sharing"] = [asdict(one) for one in sharing.measure()]
    if "ranks" in chosen:
        note("ranks as trees of their own, against one torchrun tree")
        found["ranks"] = ranks.measure(rounds=min(rounds, ranks.ROUNDS))
    if "coordination" in chosen:
        found["coordination"] = measure_coordination(console, note)
    return found


def main() -> None:
    """Measure what was asked for, one part after another."""
    parser = argparse.ArgumentParser(prog="bench", description=__doc__.split("\n")[0])
    parser.add_argument("--json", action="store_true", help="end with one JSON object")
    parser.add_argument("--only", choices=PARTS, action="append", help="may be repeated")
    parser.add_argument("--rounds", type=int, default=images.ROUNDS, help="of pause and restore")
    options = parser.parse_args()
    chosen = options.only or list(PARTS)
    console = Console(stderr=options.json, highlight=False)
    found: dict[str, Any] = {"machine": {"cores": os.cpu_count(), "kernel": platform.release()}}
    if os.geteuid() != 0:
        for part in (part for part in chosen if part in NEED_ROOT):
            console.print(f"{part}: left out, it needs root")
        chosen = [part for part in chosen if part not in NEED_ROOT]
    people = Console(stderr=True, highlight=False)

    def note(part: str) -> None:
        people.print(f"measuring: {part}", style="dim")

    found |= measure(chosen, options.rounds, console, note)
    show(found, console)
    if options.json:
        sizes = [one.to_fields() for one in found.pop("coordination", ())]
        compared = [one.to_fields() for one in found.pop("ranks", ())]
        print(json.dumps({**found, "ranks": compared, "coordination": {"sizes": sizes}}))
    sys.stdout.flush()


if __name__ == "__main__":
    main()
