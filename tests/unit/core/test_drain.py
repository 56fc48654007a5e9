"""A node that is emptied: the whole core over time, with nodes, a store and restores."""

from __future__ import annotations

import pytest

from coordinator.core import commands, drain_events, events
from coordinator.core.drain_events import NoticeGiven, NoticeKind
from coordinator.core.drain_records import DrainState, DrainStep
from coordinator.core.job_policy import JobPolicy, OnFailure
from coordinator.core.model import AttemptState, Phase, RestoreState
from tests.support.core_checks import answer_until, two_and_a_spare
from tests.support.core_drains import (
    drain,
    go_on,
    on,
    places,
    record,
    serve,
    state,
    undrain,
    unwritten,
)
from tests.support.core_shims import Node, facts
from tests.support.core_world import World

D = DrainState
S = DrainStep


@pytest.fixture
def world() -> World:
    """A job of two workers on node-1 and node-2, and a spare, node-3."""
    return two_and_a_spare()


def test_a_node_is_emptied_and_its_worker_goes_on_where_it_was_stopped(world: World) -> None:
    request = drain(world)
    assert not world.due, "nothing is stopped before it is recorded"
    world.store()
    assert world.last[request].state == "DRAINING"
    go_on(world)
    assert (state(world), places(world)) == (D.DRAINED, ["node-1", "node-3"])
    (attempt,) = world.control.attempts()
    (restore,) = world.control.restores()
    assert (attempt.state, attempt.stop, attempt.cause) == (
        AttemptState.COMMITTED, True, "drain of node-2",
    )  # fmt: skip
    assert (restore.state, restore.snapshot) == (RestoreState.RUNNING, attempt.attempt)
    assert on(world, "node-2") == []
    assert world.drains["node-2"] == record(world)
    assert [job.step for job in world.drains["node-2"].jobs] == [S.MOVED]


def test_it_is_refused_where_no_other_node_can_take_the_workers(world: World) -> None:
    world.lose("node-3")
    request = drain(world)
    refused = world.refused[request].failure
    assert refused.kind == "NoPlan"
    assert any("to be drained" in line for line in refused.details)
    go_on(world)
    assert (state(world), places(world)) == (D.UNDRAINED, ["node-1", "node-2"])
    assert not world.control.attempts()
    assert not world.drains


def test_one_spare_is_not_promised_to_two_jobs(world: World) -> None:
    world.node(Node(facts("node-4")))
    world.start("other", ["node-4"])
    moved = world.nodes["node-4"].workers.pop(("other", 0))
    world.report("node-4")
    world.nodes["node-2"].workers[("other", 0)] = moved
    world.lose("node-4")
    world.report("node-2")
    world.settle()
    request = drain(world)
    refused = world.refused[request].failure
    assert refused.kind == "NoPlan"
    assert any("which has to leave node-2" in line for line in refused.details), refused.details


def test_it_is_refused_where_there_is_not_enough_time(world: World) -> None:
    world.checkpoint("llm", "a1")
    for phase in (Phase.HOLD, Phase.PARK, Phase.DUMP, Phase.PERSIST):
        answer_until(world, phase)
        world.tick(2.0)
    world.settle()
    request = drain(world, deadline_s=5.0)
    refused = world.refused[request].failure
    assert refused.kind == "NotReady"
    assert "5 s are allowed" in refused.what
    assert state(world) is D.UNDRAINED
    request = drain(world, deadline_s=60.0)
    go_on(world)
    assert state(world) is D.DRAINED
    (_, attempt) = world.control.attempts()
    assert attempt.deadline_s == pytest.approx(60.0, abs=2.0)


def test_an_unknown_node_and_a_lost_one_are_refused(world: World) -> None:
    assert world.refused[drain(world, "nowhere")].failure.kind == "NotFound"
    world.lose("node-2")
    assert world.refused[drain(world)].failure.kind == "NotReady"


def test_an_empty_node_is_drained_at_once_and_takes_nobody(world: World) -> None:
    drain(world, "node-3")
    world.store()
    go_on(world, 2.0)
    assert state(world, "node-3") is D.DRAINED
    world.checkpoint("llm", "a1")
    world.settle()
    world.lose("node-2")
    world.restore("llm", "r1", "a1")
    details = world.refused["r1"].failure.details
    assert any("node-3" in line and "is drained: kernel update" in line for line in details)
    undrain(world, "node-3")
    assert not world.drains
    world.restore("llm", "r2", "a1")
    world.settle()
    assert places(world) == ["node-1", "node-3"]


def test_an_attempt_that_has_the_job_is_waited_for(world: World) -> None:
    world.checkpoint("llm", "a1")
    answer_until(world, Phase.DUMP)
    drain(world)
    world.store()
    world.tick(2.0)
    assert not world.due
    go_on(world)
    assert (state(world), places(world)) == (D.DRAINED, ["node-1", "node-3"])


def test_a_restore_that_fails_puts_the_job_back_where_it_was(world: World) -> None:
    drain(world)
    world.store()
    world.tick(1.0)
    serve(world)
    answer_until(world, Phase.PERSIST)
    world.lose("node-3")
    go_on(world, 10.0)
    assert (state(world), places(world)) == (D.FAILED, ["node-1", "node-2"])
    found = world.control.drain("node-2")
    assert found is not None
    assert "job llm stayed: no node for worker 1" in found.reason
    assert not world.control.nodes()[1].drain.state.startswith("DRAIN")  # type: ignore[union-attr]
    world.attach("node-3", new_session=True)
    request = drain(world)
    world.store()
    assert world.last[request].state == "DRAINING", "it can be tried again"
    go_on(world, 10.0)
    assert (state(world), places(world)) == (D.DRAINED, ["node-1", "node-3"])


def test_a_checkpoint_that_fails_is_tried_again_and_then_the_job_stays(world: World) -> None:
    drain(world)
    world.store()
    for _ in range(3):
        while not world.due:
            world.tick(0.5)
        serve(world)
        (busy,) = world.control.under_way()
        world.event(events.AbortRequested(busy, "for a test"))
        world.settle()
    go_on(world, 3.0)
    assert (state(world), places(world)) == (D.FAILED, ["node-1", "node-2"])
    assert len(world.control.attempts()) == 3


def test_a_job_that_never_gets_whole_is_not_waited_for_without_end(world: World) -> None:
    drain(world)
    world.store()
    world.lose("node-1")
    go_on(world, 5.0)
    assert state(world) is D.DRAINING
    world.now += 86_400.0
    go_on(world, 2.0)
    assert state(world) is D.FAILED
    (job,) = world.drains["node-2"].jobs
    assert (job.step, job.why) == (S.STAYED, "its time is up; it was not whole until then")


def test_two_drains_at_once_leave_both_nodes_empty(world: World) -> None:
    world.node(Node(facts("node-4")))
    drain(world, "node-2")
    drain(world, "node-1")
    world.store()
    go_on(world, 20.0)
    assert (state(world, "node-1"), state(world, "node-2")) == (D.DRAINED, D.DRAINED)
    assert sorted(places(world)) == ["node-3", "node-4"]


def test_called_off_before_the_cut_nothing_moves(world: World) -> None:
    drain(world)
    world.store()
    undrain(world)
    go_on(world, 3.0)
    assert (state(world), places(world)) == (D.UNDRAINED, ["node-1", "node-2"])
    assert not world.control.attempts()


def test_called_off_in_the_middle_the_job_comes_back_where_it_was(world: World) -> None:
    drain(world)
    world.store()
    world.tick(1.0)
    serve(world)
    answer_until(world, Phase.PERSIST)
    undrain(world)
    assert state(world) is D.UNDRAINING
    go_on(world)
    assert (state(world), places(world)) == (D.UNDRAINED, ["node-1", "node-2"])
    assert not world.drains


@pytest.mark.parametrize("policy", [False, True])
def test_a_node_that_dies_meanwhile_is_left_to_the_recovery(world: World, policy: bool) -> None:
    world.checkpoint("llm", "a1")
    world.settle()
    if policy:
        rule = JobPolicy("llm", on_failure=OnFailure.RESTORE, grace_s=1.0)
        world.event(events.PolicyChanged(rule))
        world.tick(2.0)
    drain(world)
    world.store()
    world.tick(1.0)
    serve(world)
    answer_until(world, Phase.HOLD)
    world.lose("node-2")
    go_on(world, 20.0)
    if policy:
        assert (state(world), places(world)) == (D.DRAINED, ["node-1", "node-3"])
    else:
        assert state(world) is D.DRAINING
        world.restore("llm", "r-operator", "a1")
        go_on(world)
        assert (state(world), places(world)) == (D.DRAINED, ["node-1", "node-3"])


@pytest.mark.parametrize("policy", [False, True])
def test_a_job_that_cannot_be_put_back_is_named_and_its_recovery_takes_over(
    world: World, policy: bool
) -> None:
    if policy:
        rule = JobPolicy("llm", on_failure=OnFailure.RESTORE)
        world.event(events.PolicyChanged(rule))
        world.tick(2.0)
    drain(world)
    world.store()
    world.tick(1.0)
    serve(world)
    answer_until(world, Phase.PERSIST)
    world.lose("node-3")
    world.answer_all()
    world.settle()
    world.lose("node-1")
    go_on(world, 40.0)
    assert state(world) is D.FAILED
    (job,) = world.drains["node-2"].jobs
    assert job.step is S.STRANDED
    assert "could not be put back: no node for worker 0" in job.why
    world.attach("node-1", new_session=True)
    go_on(world, 10.0)
    assert places(world) == (["node-1", "node-2"] if policy else ["exited"])


def test_a_drain_that_cannot_be_recorded_does_not_begin(world: World) -> None:
    request = drain(world)
    unwritten(world)
    assert world.refused[request].failure.kind == "StoreError"
    go_on(world)
    assert not world.control.attempts()


# -- notices ---------------------------------------------------------------------------------------


def notice(world: World, kind: NoticeKind, deadline_s: float = 60.0) -> None:
    world.event(NoticeGiven("node-2", kind, deadline_s, "its shim was told SIGTERM"))


def test_a_notice_asks_for_a_drain_once(world: World) -> None:
    notice(world, NoticeKind.DRAIN)
    (asked,) = world.notices
    assert (asked.node, asked.deadline_s) == ("node-2", 60.0)
    drain(world)
    world.store()
    notice(world, NoticeKind.DRAIN)
    assert len(world.notices) == 1


def test_what_cannot_be_moved_is_saved_at_least(world: World) -> None:
    world.lose("node-3")
    world.event(
        drain_events.DrainRequested("node-2", "r", "spot notice", 60.0, 1000.0, notice=True)
    )
    assert world.refused["r"].failure.kind == "NoPlan"
    (asked,) = world.due
    assert (asked.job, asked.stop, asked.deadline_s) == ("llm", False, 60.0)
    assert asked.reason == "node-2 goes: spot notice"


def test_a_notice_for_a_checkpoint_asks_for_one(world: World) -> None:
    notice(world, NoticeKind.CHECKPOINT)
    (asked,) = world.due
    assert (asked.job, asked.stop, asked.drain) == ("llm", False, "")
    go_on(world, 1.0)
    assert [each.state for each in world.control.attempts()] == [AttemptState.COMMITTED]
    notice(world, NoticeKind.CHECKPOINT)
    world.event(NoticeGiven("node-3", NoticeKind.CHECKPOINT, 0.0, "a spare"))
    assert len(world.due) == 1


def test_what_is_asked_of_the_server_names_the_drain(world: World) -> None:
    drain(world)
    world.store()
    world.tick(1.0)
    (asked,) = world.due
    assert asked == commands.AskCheckpoint(
        "llm", asked.cut, "drain of node-2", stop=True, drain="node-2"
    )
