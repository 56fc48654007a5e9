"""What checkpoints and failures have cost, and the budget that is kept by it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from coordinator.core.job_policy import JobPolicy
from coordinator.core.model import (
    AttemptState,
)
from coordinator.core.schedule import Schedule
from tests.support.core_schedule import AUTO, EVERY, RESTORED, SIGHT, STEPS, looking, record


@pytest.fixture
def schedule() -> Schedule:
    made = Schedule()
    made.set(EVERY)
    return made


@pytest.mark.parametrize(
    ("policy", "due"),
    [
        (replace(EVERY, interval_s=10.0, budget=0.02), 98.0),  # 2 s each
        (replace(EVERY, interval_s=150.0, budget=0.02), 150.0),
        (replace(STEPS, interval_steps=5, budget=0.02), 98.0),
        (replace(AUTO, budget=0.002), 998.0),
    ],
)
def test_the_budget_wins_over_every_interval(policy: JobPolicy, due: float) -> None:
    schedule = Schedule()
    schedule.set(policy)
    looking(schedule, -5.0, 5.0)
    schedule.attempt_ended(record(), 0.0)
    assert looking(schedule, 1.0, 1200.0, speed=1.0) == pytest.approx(due, abs=1.0)


def test_what_was_given_up_is_in_the_budget_too(schedule: Schedule) -> None:
    """Five of 3 s each, none of which was committed: at two percent, that is paid off later."""
    schedule.set(replace(EVERY, interval_s=10.0, budget=0.02))
    at = looking(schedule, 0.0, 50.0)
    for _ in range(5):
        schedule.attempt_ended(record(AttemptState.ABORTED, pause_ms=3000), at)
    waits = schedule.explain("llm", None, SIGHT, at + 700.0).waits
    assert waits.startswith("its budget, for another")
    again = looking(schedule, at + 1.0, 2000.0)
    assert again == pytest.approx(15.0 * 0.98 / 0.02, abs=12.0)


def test_a_long_pause_is_paid_off_before_the_next(schedule: Schedule) -> None:
    """The median of what they cost says nothing of one that took long."""
    schedule.set(replace(EVERY, interval_s=10.0, budget=0.1))
    at = 0.0
    for pause_ms in (1000, 1000, 60_000, 1000):
        at = looking(schedule, at, 5000.0) + 1.0
        schedule.attempt_ended(record(pause_ms=pause_ms), at)
    assert at >= 62.0 * 9


def test_a_restart_is_from_the_last_step_to_the_next_new_one(schedule: Schedule) -> None:
    looking(schedule, 0.0, 60.0, speed=1.0)
    schedule.look(replace(SIGHT, ready=False), 61.0)
    schedule.interrupted("llm", ("n1",), False)
    schedule.restore_ended(RESTORED)
    for second in (80.0, 81.0):  # it is back, at the step that it was saved at
        schedule.look(replace(SIGHT, step=30), second)
    assert schedule.explain("llm", None, SIGHT, 81.0).costs.restart_s == 4.0, "as the restore says"
    schedule.look(replace(SIGHT, step=31), 82.0)
    costs = schedule.explain("llm", None, SIGHT, 82.0).costs
    assert costs.restart_s == pytest.approx(22.0, abs=1.0)


def test_a_move_that_somebody_asked_for_says_nothing_of_failures(schedule: Schedule) -> None:
    looking(schedule, 0.0, 60.0, speed=1.0)
    schedule.interrupted("llm", (), False)
    schedule.restore_ended(RESTORED)
    for second, step in ((80.0, 30), (82.0, 31)):
        schedule.look(replace(SIGHT, step=step), second)
    assert schedule.explain("llm", None, SIGHT, 82.0).costs.restart_s == 4.0


def test_what_a_set_interval_loses_is_told_once_it_is_known(schedule: Schedule) -> None:
    looking(schedule, 0.0, 60.0)
    assert told_lost(schedule) == 0.0, "neither a cost nor a failure is known"
    schedule.attempt_ended(record(), 61.0)
    assert told_lost(schedule) == 0.0, "no failure was seen or is expected"
    schedule.interrupted("llm", ("n1",), False)
    looking(schedule, 62.0, 60.0)
    assert told_lost(schedule) > 0.0


def told_lost(schedule: Schedule) -> float:
    interval = schedule.explain("llm", None, SIGHT, 200.0).interval
    assert interval is not None
    return interval.lost_s_per_day


def test_the_interval_is_computed_anew_after_each_attempt(schedule: Schedule) -> None:
    schedule.set(AUTO)
    found = []
    for pause_ms in (2000, 8000, 8000):
        schedule.attempt_ended(record(pause_ms=pause_ms), 0.0)
        told = schedule.explain("llm", None, SIGHT, 1.0).interval
        assert told is not None
        found.append((told.seconds, told.lost_s_per_day))
    assert found[0] < found[1] < found[2]
    assert found[2][0] == pytest.approx(2 * found[0][0], rel=0.05)  # by the root of the cost


def test_what_a_checkpoint_slows_the_job_down_by_is_part_of_its_cost(schedule: Schedule) -> None:
    for second in range(60):
        schedule.look(replace(SIGHT, step=10 * second), float(second))
    for second in range(60, 71):  # ten seconds at half the speed
        sight = replace(SIGHT, ready=False, busy=True, step=600 + 5 * (second - 60))
        schedule.look(sight, float(second))
    schedule.attempt_ended(record(), 70.5)
    assert schedule.explain("llm", None, None, 71.0).costs.checkpoint_s == pytest.approx(5, abs=0.2)


def test_what_an_earlier_leader_has_seen_is_not_paid_off_under_this_one(schedule: Schedule) -> None:
    """Its time was not watched here either."""
    schedule.set(replace(EVERY, interval_s=10.0, budget=0.02))
    for _ in range(5):
        schedule.remember(record(pause_ms=60_000), 0.0)
    assert looking(schedule, 0.0, 20_000.0) == pytest.approx(60.0 * 49, abs=2.0), "the median's"
