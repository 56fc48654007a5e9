"""Rounds of orders: how often the answers of many members are announced."""

from __future__ import annotations

from coordinator.core.action import PROGRESS_INTERVAL_S, PROGRESS_STEPS, Member, Round
from coordinator.core.model import Phase


def announced(members: int, seconds: float) -> int:
    """How many of the answers, evenly spread over so many seconds, are announced."""
    awaited = {worker: Member(worker, f"n{worker}") for worker in range(members)}
    sent = Round(Phase.PARK, 0.0, 60.0, False, 60.0, members, awaited)
    count = 0
    for worker in range(members):
        sent.take(worker)
        count += sent.worth_announcing(seconds * (worker + 1) / members)
    return count


def test_every_answer_of_a_few_is_announced() -> None:
    assert announced(2 * PROGRESS_STEPS - 1, 0.0) == 2 * PROGRESS_STEPS - 1


def test_of_many_only_some_and_not_too_often() -> None:
    assert announced(1_024, 60.0) == PROGRESS_STEPS
    assert announced(1_024, 0.0) == 0
    assert 1 <= announced(1_024, 0.5) <= 0.5 / PROGRESS_INTERVAL_S
