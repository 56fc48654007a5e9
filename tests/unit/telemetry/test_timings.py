"""Answers are kept until their action has ended, the slowest of many."""

from __future__ import annotations

from allstop.v1 import records_pb2, shim_pb2

from coordinator.core.model import Phase
from coordinator.telemetry.timings import ACTIONS_MAX, SLOWEST_KEPT, Timings


def answer(worker: int, took_ms: int, action: str = "a1") -> shim_pb2.OrderResult:
    return shim_pb2.OrderResult(
        job="llm",
        worker=worker,
        action=action,
        phase=records_pb2.PHASE_PARK,
        took_ms=took_ms,
        laps=[records_pb2.Lap(part="wait", took_ms=1)],
        arrivals=[records_pb2.Arrival(rank=worker, after_ms=took_ms)],
    )


def test_the_slowest_comes_first_and_the_newest_answer_of_a_worker_counts() -> None:
    timings = Timings()
    for worker, took_ms in ((0, 10), (1, 30), (2, 20), (1, 5)):
        timings.answered(f"n{worker}", answer(worker, took_ms))
    timeline = timings.ended("llm", "a1")
    assert [(each.worker, each.took_ms) for each in timeline.timings] == [(2, 20), (0, 10), (1, 5)]
    assert timeline.timings[0].phase is Phase.PARK
    assert timeline.timings[0].arrivals[0].after_ms == 20
    assert timings.ended("llm", "a1").timings == ()


def test_of_thousands_the_slowest_are_kept_and_the_others_counted() -> None:
    timings = Timings()
    for worker in range(5_000):
        timings.answered("n", answer(worker, (worker * 7919) % 5_000))
    timeline = timings.ended("llm", "a1")
    assert [each.took_ms for each in timeline.timings] == list(
        range(4_999, 4_999 - SLOWEST_KEPT, -1)
    )
    assert timeline.left_out == 5_000 - SLOWEST_KEPT


def test_answers_about_nothing_do_not_pile_up() -> None:
    timings = Timings()
    for number in range(2 * ACTIONS_MAX):
        timings.answered("n", answer(0, 1, f"a{number}"))
    assert timings.ended("llm", "a0").timings == ()
    assert len(timings.ended("llm", f"a{2 * ACTIONS_MAX - 1}").timings) == 1
