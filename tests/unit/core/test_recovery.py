"""A job's way back by itself: the whole core over time, with nodes, a store and restores."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from coordinator.core import events
from coordinator.core.job_policy import JobPolicy, LastResort, RecoveryState
from coordinator.core.model import AttemptState, Phase, RestoreState
from tests.support.core_checks import answer_until, two_and_a_spare, until
from tests.support.core_recovery import POLICY, crash, recovery, run_on, serve, story, watched
from tests.support.core_shims import Node, Worker, facts
from tests.support.core_world import World

S = RecoveryState


@pytest.fixture
def world() -> World:
    return watched()


def test_a_lost_node_is_replaced_by_itself(world: World) -> None:
    world.lose("node-2")
    world.tick(POLICY.grace_s - 2.0)
    assert not world.wanted
    world.tick(4.0)
    asked = serve(world)
    assert "node-2 is lost" in asked.cause
    world.settle()
    (record,) = world.control.restores()
    assert record.state is RestoreState.RUNNING
    assert "node-2 is lost" in record.cause
    world.tick(3.0)
    assert recovery(world).state is S.WATCHING
    assert not world.wanted
    assert "the run has ended" in story(world)
    assert f"runs from a1 ({record.restore})" in story(world)
    assert world.recoveries["llm"] == world.control.recovery("llm")


def test_a_node_that_comes_back_in_time_is_not_replaced(world: World) -> None:
    world.lose("node-2")
    world.tick(POLICY.grace_s - 2.0)
    world.attach("node-2")
    world.tick(30.0)
    assert not world.wanted


def test_a_crash_is_answered_at_once(world: World) -> None:
    crash(world, code=-11)
    world.tick(2.5)
    assert "worker 1 on node-2 was ended by signal 11" in serve(world).cause
    world.settle()
    world.tick(2.0)
    assert recovery(world).state is S.WATCHING


def test_two_nodes_lost_within_a_second_are_one_recovery(world: World) -> None:
    world.node(Node(facts("node-4")))
    world.lose("node-1")
    world.tick(0.5)
    world.lose("node-2")
    world.tick(POLICY.grace_s + 2.0)
    asked = serve(world)
    assert "node-1" in asked.cause
    assert "node-2" in asked.cause
    # nobody of the run is in reach: it may go on where nobody sees it, so nothing is restored
    assert recovery(world).state is S.WAITING
    assert "waits for nodes" in story(world)
    world.attach("node-1")
    world.tick(7.0)
    serve(world)
    world.settle()
    world.tick(2.0)
    assert recovery(world).state is S.WATCHING


@pytest.mark.parametrize("phase", [Phase.FETCH, Phase.CLEAR, Phase.RESTORE, Phase.RELEASE])
def test_a_failure_during_the_recovery_is_recovered_from(world: World, phase: Phase) -> None:
    world.node(Node(facts("node-4")))
    crash(world)
    world.tick(2.5)
    serve(world)
    answer_until(world, phase)
    victim = next(o.node for o in world.orders if o.phase is phase)
    world.lose(victim)
    world.settle()
    world.tick(1.0)
    for _ in range(12):
        if world.wanted:
            serve(world)
            world.settle()
        world.tick(5.0)
        if recovery(world).state is S.WATCHING and not world.wanted:
            break
    assert recovery(world).state is S.WATCHING
    assert world.control.restores()[-1].state is RestoreState.RUNNING


def test_a_failure_during_an_attempt_waits_for_its_undoing(world: World) -> None:
    until(world, Phase.DUMP, "a2")
    world.lose("node-2")
    world.tick(1.0)
    world.settle()
    world.tick(POLICY.grace_s + 3.0)
    serve(world)
    world.settle()
    world.tick(2.0)
    assert recovery(world).state is S.WATCHING
    assert world.control.restores()[-1].snapshot == "a1"


def test_a_job_that_ended_well_is_finished(world: World) -> None:
    crash(world, "node-1", 0)
    world.tick(30.0)
    assert not world.wanted  # the other one is about to
    crash(world, "node-2", 0)
    world.tick(2.0)
    assert recovery(world).state is S.FINISHED
    world.tick(100.0)
    assert not world.wanted


@pytest.mark.parametrize("ended", [1, 2])
def test_a_new_leader_knows_who_ended_well(world: World, ended: int) -> None:
    for name in ("node-1", "node-2")[:ended]:
        crash(world, name, 0)
        world.lose(name, politely=True)
        world.tick(2.0)
    world.new_leader()
    world.tick(200.0)
    assert not world.wanted
    if ended == 1:
        crash(world, "node-2", 0)
        world.tick(2.0)
    assert recovery(world).state is S.FINISHED


@pytest.mark.parametrize("shims_leave", [("node-1",), ("node-1", "node-2")])
def test_a_shim_that_leaves_after_its_worker_ended_well_is_no_loss(
    world: World, shims_leave: tuple[str, ...]
) -> None:
    for name in ("node-1", "node-2"):
        crash(world, name, 0)
        if name in shims_leave:
            world.lose(name, politely=True)
        if name == "node-1":
            world.tick(100.0)
            assert not world.wanted  # the other worker still has something to do
    world.tick(2.0)
    assert recovery(world).state is S.FINISHED
    assert "all workers ended with exit code 0" in story(world)
    world.tick(100.0)
    assert not world.wanted


@pytest.mark.parametrize("first", [True, False])
def test_shims_that_leave_with_the_code_of_a_worker_that_crashed_end_no_job_well(
    world: World, first: bool
) -> None:
    """Without a snapshot or a restore of theirs they leave at once."""
    for name in ("node-1", "node-2"):
        crash(world, name, 1, step=7)
        if first:
            world.lose(name, "the worker ended with exit code 1", politely=True)
    if not first:
        for name in ("node-1", "node-2"):
            world.lose(name, "the worker ended with exit code 1", politely=True)
    world.tick(4.0)
    asked = serve(world)
    assert "worker 0 on node-1 ended with exit code 1" in asked.cause
    assert "worker 1 on node-2 ended with exit code 1" in asked.cause
    told = recovery(world)
    assert (told.state, told.crashes, told.crash_step) == (S.WAITING, 1, 7)
    assert "told to end" not in story(world)


def test_a_job_that_crashed_before_its_first_snapshot_says_so() -> None:
    world = two_and_a_spare()
    world.event(events.PolicyChanged(POLICY))
    world.tick(2.0)
    for name in ("node-1", "node-2"):
        crash(world, name, 1)
        world.lose(name, "the worker ended with exit code 1", politely=True)
    world.tick(4.0)
    serve(world)
    assert recovery(world).state is S.GIVEN_UP
    assert "ended with exit code 1" in story(world)
    assert "no snapshot left to restore" in story(world)


def test_giving_up_does_not_end_what_was_started_anew_meanwhile() -> None:
    """As pods are before the first snapshot of their job."""
    world = two_and_a_spare()
    world.event(events.PolicyChanged(POLICY))
    world.tick(2.0)
    for name in ("node-1", "node-2"):
        crash(world, name, 1)
        world.lose(name, "the worker ended with exit code 1", politely=True)
    world.tick(4.0)
    assert world.wanted
    anew = Worker("llm", 0, 2, 4, {0: 0, 1: 0})
    world.nodes["node-1"].workers[("llm", 0)] = anew
    world.attach("node-1", new_session=True)
    world.store()
    assert anew.incarnation == 2
    serve(world)
    assert recovery(world).state is S.UNSEEN
    assert world.nodes["node-1"].workers == {("llm", 0): anew}
    world.nodes["node-2"].workers[("llm", 1)] = Worker("llm", 1, 2, 4, {2: 0, 3: 0})
    world.attach("node-2", new_session=True)
    world.store()
    world.tick(2.0)
    assert recovery(world).state is S.WATCHING


def test_a_job_that_was_stopped_is_finished(world: World) -> None:
    world.checkpoint("llm", "a2", stop=True)
    world.settle()
    for name in ("node-1", "node-2"):
        crash(world, name, -15)
    world.tick(30.0)
    assert recovery(world).state is S.FINISHED
    assert not world.wanted


def test_shims_that_are_told_to_end_end_the_job(world: World) -> None:
    world.lose("node-1", politely=True)
    world.lose("node-2", politely=True)
    world.tick(30.0)
    assert recovery(world).state is S.FINISHED
    assert not world.wanted


def test_without_a_spare_it_waits_and_begins_the_moment_one_is_there(world: World) -> None:
    world.lose("node-3", politely=True)
    world.lose("node-2")
    world.tick(POLICY.grace_s + 2.0)
    serve(world)
    assert recovery(world).state is S.WAITING
    world.tick(1.0)
    world.wanted.clear()
    world.node(Node(facts("node-5")))
    world.tick(1.5)
    serve(world)
    world.settle()
    world.tick(2.0)
    assert recovery(world).state is S.WATCHING


def test_nodes_are_not_waited_for_forever(world: World) -> None:
    world.lose("node-3", politely=True)
    world.lose("node-2")
    for _ in range(20):
        world.tick(5.0)
        if world.wanted:
            serve(world)
    assert recovery(world).state is S.GIVEN_UP
    assert "no nodes that can take it within 60 s" in story(world)
    assert not world.nodes["node-1"].workers  # what was left of it was ended
    world.tick(100.0)
    assert not world.wanted


def test_a_crash_loop_leaves_the_poisoned_snapshot_behind(world: World) -> None:
    run_on(world, 50)
    world.checkpoint("llm", "a2")
    world.settle()
    run_on(world, 60)
    world.tick(2.0)
    asked = []
    for _ in range(4):
        crash(world)
        world.tick(5.0)
        asked.append(serve(world))
        world.settle()
        run_on(world, 60)
        world.tick(2.0)
    assert [each.skip for each in asked] == [(), (), ("a2",), ("a2",)]
    assert "it has ended 3 times at step 60" in story(world)
    assert "a2 is left behind" in story(world)
    assert [r.snapshot for r in world.control.restores()] == ["a2", "a2", "a1", "a1"]
    run_on(world, 70)
    world.checkpoint("llm", "a3")
    world.settle()
    assert world.control.recovery("llm").skipped == ()


def test_when_no_snapshot_is_left_it_is_given_up(world: World) -> None:
    for _ in range(6):
        crash(world)
        world.tick(5.0)
        if world.wanted:
            serve(world)
            world.settle()
            world.tick(2.0)
    assert recovery(world).state is S.GIVEN_UP
    assert "no snapshot left" in story(world)


def test_or_started_from_scratch(world: World) -> None:
    cold = replace(POLICY, last_resort=LastResort.COLD_START)
    world.event(events.PolicyChanged(cold))
    world.tick(2.0)
    for _ in range(6):
        crash(world)
        world.tick(5.0)
        while world.wanted:
            asked = serve(world)
            world.settle()
            world.tick(2.0)
        if asked.scratch:
            break
    assert world.control.restores()[-1].cold
    assert world.control.restores()[-1].state is RestoreState.RUNNING
    assert recovery(world).state is S.WATCHING


def test_hung_is_a_failure_where_the_policy_says_so(world: World) -> None:
    world.event(events.PolicyChanged(replace(POLICY, hung=10.0)))
    for step in range(100, 130):
        run_on(world, step)
        world.tick(1.0)
    world.tick(25.0)
    assert not world.wanted
    world.tick(10.0)
    assert re.search(r"no step for 3\d s, usually one in [01]\.\d s", serve(world).cause)
    world.settle()
    world.tick(2.0)
    assert recovery(world).state is S.WATCHING


def test_a_node_that_returns_after_its_worker_was_moved_is_fenced(world: World) -> None:
    old = world.nodes["node-2"]
    world.lose("node-2")
    world.tick(POLICY.grace_s + 2.0)
    serve(world)
    world.settle()
    assert old.workers
    world.attach("node-2")
    assert not old.workers
    world.tick(10.0)
    assert not world.wanted


def test_a_new_leader_goes_on_with_it(world: World) -> None:
    world.lose("node-2")
    world.tick(POLICY.grace_s + 2.0)
    assert world.wanted
    world.wanted.clear()
    world.new_leader()
    world.tick(world.policy.adopt_s - 5.0)
    assert not world.wanted  # its node may be on its way
    world.tick(15.0)
    serve(world)
    world.settle()
    world.tick(2.0)
    assert recovery(world).state is S.WATCHING
    assert "the run has ended" in story(world)


def test_without_the_policy_nothing_is_done(world: World) -> None:
    world.event(events.PolicyChanged(JobPolicy("llm")))
    crash(world)
    world.tick(100.0)
    assert not world.wanted


def test_an_operators_restore_is_not_disturbed(world: World) -> None:
    crash(world)
    world.restore("llm", "mine", "a1")
    world.tick(5.0)
    assert not world.wanted
    world.settle()
    world.tick(5.0)
    assert not world.wanted
    assert recovery(world).state is S.WATCHING
    assert world.control.attempt("a1").state is AttemptState.COMMITTED  # type: ignore[union-attr]


@pytest.mark.parametrize("moved", [False, True])
def test_both_nodes_and_the_leader_are_lost_and_a_node_comes_back_empty(
    world: World, moved: bool
) -> None:
    """The new leader has seen no worker of the run; where they were is in the store."""
    lost = ["node-1", "node-2"]
    if moved:
        world.lose("node-2")
        world.tick(POLICY.grace_s + 2.0)
        serve(world)
        world.settle()
        lost = ["node-1", "node-3"]
    for name in lost:
        world.lose(name)
        world.nodes[name].workers.clear()
    world.new_leader()
    world.tick(world.policy.adopt_s + POLICY.grace_s + 5.0)
    serve(world)
    assert recovery(world).state is S.WAITING
    for name in lost:
        world.attach(name, new_session=True)
    world.tick(2.0)
    serve(world)
    world.settle()
    world.tick(2.0)
    assert recovery(world).state is S.WATCHING
