"""The interval between checkpoints: known values of the formulas, bounds, what failures teach."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coordinator.core.errors import BadRequest
from coordinator.core.interval import (
    DAY_S,
    Bounds,
    Costs,
    Watched,
    best,
    daly,
    lost_per_day,
    mtbf,
    young,
)

WIDE = Bounds(least_s=1e-6, most_s=1e9)
HOUR_S = 3600.0


@pytest.mark.parametrize(
    ("checkpoint_s", "hours", "young_min", "daly_min"),
    [(600.0, 3.1, 61.0, 54.5), (40.0, 3.1, 15.7, 15.3)],  # of Llama 3's 419 failures in 54 days
)
def test_the_worked_example(
    checkpoint_s: float, hours: float, young_min: float, daly_min: float
) -> None:
    assert young(checkpoint_s, hours * HOUR_S) / 60 == pytest.approx(young_min, abs=0.1)
    assert daly(checkpoint_s, hours * HOUR_S) / 60 == pytest.approx(daly_min, abs=0.1)


def test_where_a_checkpoint_costs_more_than_two_lives_it_is_taken_once_a_life() -> None:
    assert daly(500.0, 200.0) == 200.0


@given(st.floats(0.01, 600), st.floats(600, 1e7))
def test_no_interval_nearby_loses_less(checkpoint_s: float, mtbf_s: float) -> None:
    """Daly's formula is within a thousandth of the minimum of the model that it approximates."""
    if checkpoint_s > mtbf_s / 10:
        return
    costs = Costs(checkpoint_s, restart_s=30.0)
    least = lost_per_day(daly(checkpoint_s, mtbf_s), costs, mtbf_s)
    for factor in (0.5, 0.8, 1.25, 2.0):
        other = lost_per_day(factor * daly(checkpoint_s, mtbf_s), costs, mtbf_s)
        assert least <= other * 1.001


def test_lost_time_without_failures_is_what_checkpoints_take() -> None:
    lost = lost_per_day(90.0, Costs(10.0), 1e12)
    assert lost == pytest.approx(DAY_S / 10, rel=1e-4)


def test_lost_time_where_nothing_can_be_done_is_the_whole_day() -> None:
    assert lost_per_day(1e6, Costs(10.0), 1.0) == DAY_S
    assert math.isfinite(lost_per_day(1e-9, Costs(0.0), 1e12))


@pytest.mark.parametrize(
    ("bounds", "attempt_s", "seconds", "bound"),
    [
        (WIDE, 0.0, None, ""),
        (Bounds(least_s=7200.0), 0.0, 7200.0, "least"),
        (Bounds(least_s=1.0, most_s=100.0), 0.0, 100.0, "most"),
        (Bounds(least_s=1.0, budget=0.001), 0.0, 39_960.0, "budget"),
        (Bounds(least_s=1.0, most_s=100.0, budget=0.001), 0.0, 39_960.0, "budget"),
        (Bounds(least_s=1.0), 5000.0, 5000.0, "attempt"),
    ],
)
def test_bounds(bounds: Bounds, attempt_s: float, seconds: float | None, bound: str) -> None:
    found = best(Costs(40.0, attempt_s=attempt_s), 3.1 * HOUR_S, bounds)
    assert found.bound == bound
    assert found.seconds == pytest.approx(found.daly_s if seconds is None else seconds)


@given(st.floats(0.001, 0.5), st.floats(0.1, 1000), st.floats(100, 1e7))
def test_the_budget_is_kept(budget: float, checkpoint_s: float, mtbf_s: float) -> None:
    found = best(Costs(checkpoint_s), mtbf_s, Bounds(1.0, 2.0, budget))
    assert checkpoint_s / (found.seconds + checkpoint_s) <= budget * (1 + 1e-9)


@pytest.mark.parametrize(
    "wrong", [{"least_s": 0.0}, {"least_s": 9.0, "most_s": 8.0}, {"budget": 1.0}, {"budget": -0.1}]
)
def test_bounds_that_make_no_sense(wrong: dict[str, float]) -> None:
    with pytest.raises(BadRequest):
        Bounds(**wrong)


def test_before_anything_is_seen_the_prior_counts() -> None:
    nodes = {f"n{each}": Watched() for each in range(8)}
    assert mtbf(HOUR_S, nodes, Watched()) == pytest.approx(HOUR_S)
    assert mtbf(HOUR_S, {}, Watched()) == pytest.approx(HOUR_S)


def test_what_is_seen_outweighs_the_prior() -> None:
    watched_s, failures = 1000 * HOUR_S, 100
    nodes = {f"n{each}": Watched(watched_s, failures // 4) for each in range(4)}
    assert mtbf(HOUR_S / 10, nodes, Watched(watched_s)) == pytest.approx(10 * HOUR_S, rel=0.02)
    assert mtbf(HOUR_S * 99, nodes, Watched(watched_s)) == pytest.approx(10 * HOUR_S, rel=0.12)


def test_a_node_takes_its_failures_with_it() -> None:
    good = {f"n{each}": Watched(DAY_S, 0) for each in range(3)}
    bad = mtbf(DAY_S, {**good, "bad": Watched(DAY_S, 9)}, Watched(DAY_S))
    new = mtbf(DAY_S, {**good, "new": Watched(0.0, 0)}, Watched(DAY_S))
    assert new > 5 * bad


def test_a_job_that_crashes_by_itself_takes_its_rate_everywhere() -> None:
    assert mtbf(DAY_S, {"n0": Watched()}, Watched(DAY_S, 5)) < DAY_S / 3


def test_a_prior_must_be_there() -> None:
    with pytest.raises(BadRequest):
        mtbf(0.0, {}, Watched())
