"""The command: seeds are run in child processes that end without tidying up the dead."""

from __future__ import annotations

import argparse
import gc
import json
import logging
import os
import sys
from collections import Counter
from dataclasses import asdict, dataclass, field

import structlog

from tests.sim import clock
from tests.sim.planted import PLANTS
from tests.sim.world import World

_GO_ON = bool(os.environ.get("SIM_GO_ON"))  # to count failures, not to find one
BATCH = 20  # runs per child: what they leave is freed with the child
LAST_LINES = 60


@dataclass
class Result:
    """What came of one run."""

    seed: int
    failure: str
    digest: str
    faults: list[str] = field(default_factory=list)
    committed: int = 0
    aborted: int = 0
    restored: int = 0
    deleted: int = 0
    seconds: float = 0.0
    virtual_s: float = 0.0
    lines: list[str] = field(default_factory=list)


def simulate(seed: int, *, verbose: bool = False, focus: tuple[str, ...] = ()) -> Result:
    """One run. Whatever it made stays in memory: nothing of it may be collected and act."""
    began = clock.real()
    world = World(seed, verbose=verbose, focus=focus)
    _quiet(world)
    world.run()
    _kept.append(world)
    truth = world.truth
    return Result(
        seed=seed,
        failure=world.failure,
        digest=world.digest.hexdigest(),
        faults=world.nemesis.done,
        committed=len(truth.snapshots) + truth.deleted,
        deleted=truth.deleted,
        aborted=sum(a.state == "ABORTED" for a in truth.attempts.values()),
        restored=sum(r.state == "RUNNING" for r in truth.restores.values()),
        seconds=clock.real() - began,
        virtual_s=world.loop.now,
        lines=list(world.lines)[-LAST_LINES:] if world.failure else [],
    )


_kept: list[World] = []


def _quiet(world: World) -> None:
    """The programs' own log: errors that are defects end the run, the rest is told on demand."""

    def take(logger: object, method: str, event: dict[str, object]) -> dict[str, object]:
        if event.get("exc_info") or event.get("event") == "event refused by the core":
            world.fail(f"logged as a defect: {event}")
            if event.get("exc_info"):
                import traceback

                world.note(traceback.format_exc())
        elif world.verbose:
            world.lines.append(f"{'':9} log: {event}")
            print(f"{'':9} log: {event}", flush=True)
        raise structlog.DropEvent

    level = logging.DEBUG if world.verbose else logging.ERROR
    structlog.configure(
        processors=[take],
        wrapper_class=structlog.make_filtering_bound_logger(level),
        cache_logger_on_first_use=False,
    )


def _children(seeds: list[int], jobs: int, focus: tuple[str, ...]) -> list[Result]:
    """Run batches in forked children, `jobs` at a time; stops giving out work at a failure."""
    batches = [seeds[at : at + BATCH] for at in range(0, len(seeds), BATCH)]
    running: dict[int, int] = {}
    parent = os.getpid()
    results: list[Result] = []
    while batches or running:
        while batches and len(running) < jobs:
            reading, writing = os.pipe()
            child = os.fork()
            if child == 0:
                os.close(reading)
                try:
                    _batch(batches[0], writing, focus, parent)
                finally:  # whatever happens, a child never goes on as if it were its parent
                    os._exit(0)
            os.close(writing)
            batches.pop(0)
            running[child] = reading
        child = next(iter(running))
        with os.fdopen(running.pop(child)) as answers:
            for line in answers:
                result = Result(**json.loads(line))
                results.append(result)
                _tell(result, len(results), len(seeds))
                if result.failure and not _GO_ON:
                    batches.clear()
        os.waitpid(child, 0)
    return results


def _batch(seeds: list[int], writing: int, focus: tuple[str, ...], parent: int) -> None:
    """In a child: run and answer, for as long as somebody listens."""
    gc.disable()
    with os.fdopen(writing, "w") as answers:
        for seed in seeds:
            try:
                result = simulate(seed, focus=focus)
            except Exception as error:
                result = Result(seed, f"the simulation broke: {error!r}", "")
            answers.write(json.dumps(asdict(result)) + "\n")
            answers.flush()
            if (result.failure and not _GO_ON) or os.getppid() != parent:
                break


def _tell(result: Result, number: int, of: int) -> None:
    if result.failure:
        print(f"\nseed {result.seed}: {result.failure}")
        print("\n".join(result.lines))
        print(f"repeat it: python -m tests.sim --seed {result.seed}", flush=True)
    elif number % 100 == 0:
        print(f"{number} of {of} seeds", flush=True)


def _summary(results: list[Result], seconds: float) -> dict[str, object]:
    kinds = Counter(fault for each in results for fault in each.faults)
    return {
        "seeds": len(results),
        "violations": sum(bool(each.failure) for each in results),
        "committed": sum(each.committed for each in results),
        "aborted": sum(each.aborted for each in results),
        "restored": sum(each.restored for each in results),
        "deleted": sum(each.deleted for each in results),
        "faults": sum(kinds.values()),
        "kinds": dict(sorted(kinds.items())),
        "virtual_s": round(sum(each.virtual_s for each in results)),
        "seconds": round(seconds, 1),
    }


def main(arguments: list[str]) -> int:
    """Returns 1 when some run showed a violation."""
    parser = argparse.ArgumentParser(prog="python -m tests.sim", description=__doc__)
    parser.add_argument("--seeds", type=int, default=60, help="how many runs")
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--seed", type=int, help="repeat this one and tell all of it")
    parser.add_argument("--jobs", type=int, default=2, help="runs at the same time")
    parser.add_argument(
        "--plant", choices=sorted(PLANTS), help="a bug to plant (tests/sim/planted.py)"
    )
    parser.add_argument("--faults", default="", help="choose among these kinds alone: a,b,c")
    parser.add_argument("--quiet", action="store_true", help="with --seed: the end only")
    chosen = parser.parse_args(arguments)
    focus = tuple(filter(None, chosen.faults.split(",")))
    if chosen.plant:
        focus = PLANTS[chosen.plant]()
    began = clock.real()
    if chosen.seed is not None:
        gc.disable()
        result = simulate(chosen.seed, verbose=not chosen.quiet, focus=focus)
        print(json.dumps({**asdict(result), "lines": []}))
        if result.failure and chosen.quiet:
            print("\n".join(result.lines))
        sys.stdout.flush()
        os._exit(1 if result.failure else 0)
    seeds = list(range(chosen.first, chosen.first + chosen.seeds))
    results = _children(seeds, max(1, chosen.jobs), focus)
    summary = _summary(results, clock.real() - began)
    print(json.dumps(summary), flush=True)
    return 1 if summary["violations"] else 0
