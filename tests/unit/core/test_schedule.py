"""When a checkpoint is due by itself: rules of the schedule, and the whole core over time."""

from __future__ import annotations

from dataclasses import replace

import pytest

from coordinator.core import events
from coordinator.core.job_policy import JobHistory, JobPolicy, NodeHistory, When, check
from coordinator.core.model import (
    AttemptState,
    Cut,
)
from coordinator.core.schedule import ASKED_S, RETRY_S, Schedule, Sight
from tests.support.core_checks import state, two_and_a_spare
from tests.support.core_schedule import AUTO, EVERY, SIGHT, STEPS, looking, record
from tests.support.core_world import World


@pytest.fixture
def schedule() -> Schedule:
    made = Schedule()
    made.set(EVERY)
    return made


def test_without_a_policy_nothing_is_ever_due() -> None:
    schedule = Schedule()
    assert looking(schedule, 0.0, 1e4) == float("inf")
    assert schedule.next_wakeup() is None


def test_the_interval_counts_from_when_the_job_runs(schedule: Schedule) -> None:
    assert looking(schedule, 7.0, 200.0) == 107.0


def test_and_then_from_the_end_of_the_last_checkpoint(schedule: Schedule) -> None:
    looking(schedule, 0.0, 100.0)
    schedule.attempt_ended(record(), 130.0)
    assert looking(schedule, 131.0, 300.0) == pytest.approx(230.0, abs=1.0)


def test_an_operators_checkpoint_counts_too(schedule: Schedule) -> None:
    looking(schedule, 0.0, 50.0)
    schedule.attempt_ended(record(), 60.0)
    assert looking(schedule, 61.0, 300.0) == pytest.approx(160.0, abs=1.0)


def test_it_is_asked_for_once(schedule: Schedule) -> None:
    assert looking(schedule, 0.0, 100.0) == 100.0
    assert looking(schedule, 101.0, ASKED_S - 2.0) == float("inf")


def test_a_job_that_is_not_whole_is_left_alone(schedule: Schedule) -> None:
    assert looking(schedule, 0.0, 500.0, replace(SIGHT, ready=False)) == float("inf")
    assert looking(schedule, 501.0, 500.0, replace(SIGHT, ready=False, busy=True)) == float("inf")


def test_one_that_failed_is_tried_again_sooner_and_each_time_later(schedule: Schedule) -> None:
    at = looking(schedule, 0.0, 100.0)
    for wait_s in (RETRY_S, 2 * RETRY_S, 4 * RETRY_S):
        schedule.attempt_ended(record(AttemptState.ABORTED), at + 5.0)
        again = looking(schedule, at + 6.0, 1000.0)
        assert again == pytest.approx(at + 5.0 + wait_s, abs=1.0)
        at = again
    schedule.refused("llm", at)
    assert looking(schedule, at + 1.0, 1000.0) == pytest.approx(at + 8 * RETRY_S, abs=1.0)


def test_steps(schedule: Schedule) -> None:
    schedule.set(STEPS)
    assert looking(schedule, 0.0, 99.0, speed=1.0) == 50.0
    schedule.attempt_ended(record(step=61), 52.0)
    assert looking(schedule, 53.0, 99.0, replace(SIGHT, step=63), speed=1.0) == 53.0 + 48.0


def test_steps_count_anew_where_the_job_was_put_back(schedule: Schedule) -> None:
    schedule.set(STEPS)
    schedule.attempt_ended(record(step=500), 1.0)
    looking(schedule, 2.0, 3.0, replace(SIGHT, step=510))
    schedule.interrupted("llm", ("n1",), False)
    assert looking(schedule, 10.0, 99.0, replace(SIGHT, step=400), speed=1.0) == 60.0


def test_auto_takes_a_first_one_to_learn_what_it_costs(schedule: Schedule) -> None:
    schedule.set(AUTO)
    assert looking(schedule, 0.0, 100.0) == AUTO.least_s
    schedule.attempt_ended(record(), 40.0)
    told = schedule.explain("llm", None, SIGHT, 40.0)
    assert told.interval is not None
    assert told.costs.checkpoint_s == 2.0
    assert told.interval.seconds == pytest.approx(118.6, rel=0.02)  # Daly, 2 s and an hour
    # no failure seen meanwhile; 6 of its seconds came after its cut
    assert looking(schedule, 41.0, 300.0) == pytest.approx(40.0 + 121.0 - 6.0, abs=3.0)


def test_failures_are_counted_once_a_run_and_with_the_node(schedule: Schedule) -> None:
    looking(schedule, 0.0, 60.0)
    history = schedule.interrupted("llm", ("n1",), True)
    assert history is not None
    assert history.failures == 0
    assert [(n.node, n.failures) for n in history.nodes] == [("n0", 0), ("n1", 1)]
    assert history.watched_s == pytest.approx(60.0)
    assert schedule.interrupted("llm", ("n1",), True) is None  # a second restore of the same run
    looking(schedule, 100.0, 10.0)
    history = schedule.interrupted("llm", (), True)
    assert history is not None
    assert history.failures == 1


def test_a_run_that_was_brought_back_is_saved_as_if_nothing_had_failed(schedule: Schedule) -> None:
    """The node that is lost takes the attempt with it that was under way."""
    at = looking(schedule, 0.0, 100.0)
    for _ in range(3):
        schedule.attempt_ended(record(AttemptState.ABORTED), at + 1.0)
    schedule.interrupted("llm", ("n1",), False)
    assert looking(schedule, at + 10.0, 500.0) == pytest.approx(at + 110.0, abs=1.0)


def test_a_move_of_a_job_that_is_well_is_no_failure(schedule: Schedule) -> None:
    looking(schedule, 0.0, 60.0)
    assert schedule.interrupted("llm", (), False) is None


def test_a_node_that_fails_makes_the_interval_shorter_while_the_job_is_on_it(
    schedule: Schedule,
) -> None:
    schedule.set(AUTO)
    schedule.attempt_ended(record(), 0.0)
    schedule.adopt((), (JobHistory("llm", 1e5, 0, (NodeHistory("n1", 1e5, 60),)),))
    schedule.look(SIGHT, 1.0)
    bad = schedule.explain("llm", None, SIGHT, 1.0).interval
    schedule.look(replace(SIGHT, nodes=("n0", "n2")), 2.0)
    good = schedule.explain("llm", None, SIGHT, 2.0).interval
    assert bad is not None
    assert good is not None
    assert bad.seconds < 0.8 * good.seconds


def test_what_was_not_watched_does_not_count(schedule: Schedule) -> None:
    schedule.look(SIGHT, 0.0)
    schedule.look(SIGHT, 5000.0)
    history = schedule.explain("llm", None, SIGHT, 5000.0).history
    assert history.watched_s == 0.0


def test_a_new_leader_goes_on_counting(schedule: Schedule) -> None:
    schedule.saved_before("llm", 80.0, 1000.0)
    assert looking(schedule, 1001.0, 300.0) == pytest.approx(1020.0, abs=1.0)


def test_a_clock_that_is_a_day_off_makes_one_checkpoint_early_or_one_interval_whole() -> None:
    for ago_s, due in ((86_400.0, 1001.0), (-86_400.0, 1100.0)):
        schedule = Schedule()
        schedule.set(EVERY)
        schedule.saved_before("llm", ago_s, 1000.0)
        assert looking(schedule, 1001.0, 300.0) == pytest.approx(due, abs=1.0)
        schedule.attempt_ended(record(), 1200.0)
        assert looking(schedule, 1201.0, 300.0) == pytest.approx(1300.0, abs=1.0)


def test_a_rank_that_takes_no_steps_is_not_to_be_parked(schedule: Schedule) -> None:
    evaluating = replace(SIGHT, no_steps=True)
    assert looking(schedule, 0.0, 500.0, evaluating) == float("inf")
    assert "no steps" in schedule.explain("llm", None, evaluating, 500.0).waits
    assert schedule.look(SIGHT, 501.0)
    schedule.set(replace(EVERY, cut=Cut.FREEZE))
    assert looking(schedule, 1000.0, 500.0, evaluating) < float("inf")


def test_to_explain_another_policy_changes_nothing(schedule: Schedule) -> None:
    looking(schedule, 0.0, 10.0)
    told = schedule.explain("llm", replace(EVERY, interval_s=9.0), SIGHT, 10.0)
    assert told.due_in_s == 0.0
    assert schedule.policy("llm") == EVERY


@pytest.mark.parametrize(
    ("sight", "policy", "words"),
    [
        (SIGHT, EVERY, "its time"),
        (None, EVERY, "does not run"),
        (replace(SIGHT, ready=False), EVERY, "does not run"),
        (replace(SIGHT, ready=False, busy=True), EVERY, "under way"),
        (SIGHT, JobPolicy("llm"), "somebody asks"),
        (SIGHT, STEPS, "step 60; the job is at 10"),
    ],
)
def test_what_the_next_one_waits_for(
    schedule: Schedule, sight: Sight | None, policy: JobPolicy, words: str
) -> None:
    schedule.look(SIGHT, 0.0)
    assert words in schedule.explain("llm", policy, sight, 1.0).waits


@pytest.mark.parametrize(
    "policy",
    [
        JobPolicy("llm", When.SECONDS),
        JobPolicy("llm", When.SECONDS, interval_s=float("nan")),
        JobPolicy("llm", When.STEPS),
        JobPolicy("llm", When.AUTO),
        JobPolicy("llm", When.AUTO, mtbf_s=1.0, least_s=9.0, most_s=8.0),
        JobPolicy("llm", When.AUTO, mtbf_s=1.0, budget=2.0),
    ],
)
def test_policies_that_make_no_sense(policy: JobPolicy) -> None:
    with pytest.raises(Exception, match=r"sense|auto needs|cannot be kept|no share"):
        check(policy)


# -- the whole core ---------------------------------------------------------------------------


@pytest.fixture
def world() -> World:
    made = two_and_a_spare()
    made.event(events.PolicyChanged(EVERY))
    return made


def carry_out(world: World) -> None:
    """What the server does with a checkpoint that is due."""
    (asked,) = world.due
    world.due.clear()
    name = f"auto-{world.now:.0f}"
    request = events.CheckpointRequested(
        asked.job, name, asked.cut, False, 0.0, 1000.0 + world.now, cause=asked.reason
    )
    world.event(request)
    world.settle()


def test_the_core_asks_and_says_why(world: World) -> None:
    world.tick(99.0)
    assert not world.due
    world.tick(3.0)
    carry_out(world)
    made = world.control.attempts()[-1]
    assert made.state is AttemptState.COMMITTED
    assert "100 s" in made.cause
    assert world.histories["llm"].watched_s > 90.0


def test_the_core_leaves_alone_what_is_busy(world: World) -> None:
    world.tick(90.0)
    world.checkpoint("llm", "a1")
    world.tick(5.0)
    assert not world.due
    world.settle()
    world.tick(90.0)
    assert not world.due
    world.tick(12.0)
    assert len(world.due) == 1


def test_a_policy_may_change_while_an_attempt_runs(world: World) -> None:
    world.checkpoint("llm", "a1")
    world.event(events.PolicyChanged(replace(EVERY, interval_s=10.0)))
    world.settle()
    assert state(world) is AttemptState.COMMITTED
    world.tick(12.0)
    assert len(world.due) == 1
    world.event(events.PolicyChanged(JobPolicy("llm")))
    world.due.clear()
    world.tick(500.0)
    assert not world.due


def test_a_refused_one_waits(world: World) -> None:
    world.tick(101.0)
    world.due.clear()
    late = events.CheckpointRequested("llm", "x1", Cut.STEP, False, -1.0, 0.0, cause="100 s")
    world.event(late)
    assert "x1" in world.refused
    world.tick(RETRY_S - 3.0)
    assert not world.due
    world.tick(5.0)
    assert len(world.due) == 1


def test_the_core_counts_a_lost_node_when_it_is_replaced(world: World) -> None:
    world.checkpoint("llm", "a1")
    world.settle()
    world.tick(20.0)
    world.lose("node-2")
    world.tick(5.0)
    assert all(not node.failures for node in world.histories["llm"].nodes)
    world.restore("llm", "r1", "a1")
    failures = {node.node: node.failures for node in world.histories["llm"].nodes}
    assert failures == {"node-1": 0, "node-2": 1}


def test_a_node_that_comes_back_has_not_failed(world: World) -> None:
    world.tick(20.0)
    world.lose("node-2")
    world.tick(5.0)
    world.attach("node-2")
    world.tick(77.0)
    carry_out(world)
    assert all(not node.failures for node in world.histories["llm"].nodes)


def test_ranks_that_begin_at_step_0_again_are_counted_from_there() -> None:
    """A launcher such as torchrun may start them again without anybody being told."""
    schedule = Schedule()
    schedule.set(STEPS)
    looking(schedule, 0.0, 10.0)
    schedule.attempt_ended(record(step=1000), 11.0)
    assert looking(schedule, 12.0, 5.0, replace(SIGHT, step=1020)) == float("inf")
    due = looking(schedule, 20.0, 200.0, replace(SIGHT, step=3), speed=1.0)
    assert due == pytest.approx(20.0 + STEPS.interval_steps, abs=1.0)
