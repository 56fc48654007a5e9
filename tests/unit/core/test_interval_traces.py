"""The automatic interval against the best fixed one, over recorded traces of failures.

The automatic one begins with a prior that is wrong and learns from the trace as it goes; the fixed
one is found afterwards, by trying many over the same trace. Seeds are parameters, so a failure
repeats; `-s` prints every pair.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator

import pytest

from coordinator.core.interval import Bounds, Costs, Watched, best, mtbf

HOUR_S = 3600.0
WORK_S = 20 * 24 * HOUR_S
MEAN_S = 3.0 * HOUR_S
BOUNDS = Bounds(least_s=1.0)
COSTS = Costs(checkpoint_s=20.0, latency_s=40.0, restart_s=90.0, attempt_s=60.0)

Gaps = Callable[[random.Random], Iterator[float]]


def exponential(rng: random.Random) -> Iterator[float]:
    while True:
        yield rng.expovariate(1 / MEAN_S)


def weibull(rng: random.Random) -> Iterator[float]:
    """Shape 0.7, as clusters' logs have it: what has just failed soon fails again."""
    while True:
        yield rng.weibullvariate(MEAN_S / 1.2658, 0.7)  # gamma(1 + 1/0.7) = 1.2658


def bursts(rng: random.Random) -> Iterator[float]:
    """Quiet for long, then several within minutes."""
    while True:
        yield rng.expovariate(1 / (3 * MEAN_S))
        for _ in range(2):
            yield rng.expovariate(1 / 600.0)


def trace(gaps: Gaps, seed: int) -> list[float]:
    """When the job fails, in seconds of the wall clock, for three times as long as it works."""
    rng, at, found = random.Random(seed), 0.0, []
    for gap in gaps(rng):
        at += gap
        if at > 3 * WORK_S:
            return found
        found.append(at)
    raise AssertionError("gaps end")


def wall_s(failures: list[float], choose: Callable[[float, int], float]) -> float:
    """How long the job takes: `choose` is asked after each checkpoint and each restart."""
    now = done = kept = 0.0
    upcoming = iter([*failures, float("inf")])
    fails_at, seen = next(upcoming), 0
    while True:
        interval_s = max(choose(now, seen), COSTS.attempt_s)
        works_s = min(interval_s, WORK_S - done)
        ends = now + works_s + COSTS.checkpoint_s
        if done + works_s >= WORK_S and now + works_s <= fails_at:
            return now + works_s
        if ends + COSTS.latency_s <= fails_at:
            now, done, kept = ends, done + works_s, done + works_s
            continue
        now, done, seen = fails_at + COSTS.restart_s, kept, seen + 1
        fails_at = next(upcoming)
        while fails_at <= now:  # again, while it restarts
            now, seen, fails_at = fails_at + COSTS.restart_s, seen + 1, next(upcoming)


def learning(prior_s: float) -> Callable[[float, int], float]:
    def choose(now: float, seen: int) -> float:
        return best(COSTS, mtbf(prior_s, {"n0": Watched(now, seen)}, Watched(now)), BOUNDS).seconds

    return choose


def best_fixed(failures: list[float]) -> tuple[float, float]:
    """The least wall time of any fixed interval between one and 300 minutes, and that interval."""
    tried = [60.0 * 1.2**power for power in range(32)]
    return min((wall_s(failures, lambda now, seen, each=each: each), each) for each in tried)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("gaps", [exponential, weibull, bursts])
@pytest.mark.parametrize("wrong", [0.1, 1.0, 10.0])
def test_auto_is_within_five_percent_of_the_best_fixed_interval(
    gaps: Gaps, wrong: float, seed: int
) -> None:
    failures = trace(gaps, seed)
    fixed_s, interval_s = best_fixed(failures)
    auto_s = wall_s(failures, learning(MEAN_S * wrong))
    print(
        f"{gaps.__name__} seed {seed}, prior x {wrong}: auto {auto_s / fixed_s:.4f} of the best "
        f"fixed one, {interval_s:.0f} s; {len(failures)} failures"
    )
    assert auto_s <= 1.05 * fixed_s


def test_a_bad_interval_would_be_seen() -> None:
    """What this measures can tell a good interval from a bad one."""
    failures = trace(exponential, 0)
    fixed_s, _ = best_fixed(failures)
    assert wall_s(failures, lambda now, seen: 3 * HOUR_S) > 1.2 * fixed_s
    assert wall_s(failures, lambda now, seen: 60.0) > 1.2 * fixed_s
