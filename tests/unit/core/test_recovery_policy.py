"""Recoveries whose policy changes meanwhile, how long nodes are waited for, and what is told."""

from __future__ import annotations

from dataclasses import replace

import pytest

from coordinator.core import events
from coordinator.core.errors import AllstopError, SetupError, StoreError
from coordinator.core.failures import failure_of
from coordinator.core.job_policy import JobPolicy, RecoveryState, When
from coordinator.core.model import AttemptState, Phase
from tests.support.core_checks import answer_until, two_and_a_spare, until
from tests.support.core_recovery import (
    POLICY,
    back,
    crash,
    recovery,
    run_on,
    serve,
    story,
    watched,
)
from tests.support.core_shims import Node, facts
from tests.support.core_world import World

S = RecoveryState


@pytest.fixture
def world() -> World:
    return watched()


def test_a_policy_that_is_changed_in_a_recovery_lets_it_go_on(world: World) -> None:
    run_on(world, 60)
    world.tick(2.0)
    crash(world, step=60)
    world.tick(2.5)
    serve(world)
    answer_until(world, Phase.CLEAR)
    world.event(events.PolicyChanged(replace(POLICY, tries=5)))
    world.tick(2.0)
    assert not world.wanted  # not asked for twice
    world.settle()
    world.tick(2.0)
    assert recovery(world).state is S.WATCHING
    told = world.control.recovery("llm")
    assert (told.crashes, told.crash_step) == (1, 60)
    assert world.recoveries["llm"] == told


def test_a_policy_that_is_changed_during_an_attempt_counts_from_its_end(world: World) -> None:
    until(world, Phase.DUMP, "a2")
    soon = replace(POLICY, when=When.SECONDS, interval_s=20.0)
    world.event(events.PolicyChanged(soon))
    world.tick(2.0)
    assert not world.due
    world.settle()
    assert world.control.attempt("a2").state is AttemptState.COMMITTED  # type: ignore[union-attr]
    world.tick(18.0)
    assert not world.due
    world.tick(4.0)
    assert [asked.job for asked in world.due] == ["llm"]


def test_recovery_switched_on_during_an_attempt_answers_its_failure(world: World) -> None:
    world.event(events.PolicyChanged(JobPolicy("llm")))
    until(world, Phase.DUMP, "a2")
    world.event(events.PolicyChanged(POLICY))
    world.lose("node-2")
    world.settle()
    world.tick(POLICY.grace_s + 3.0)
    serve(world)
    world.settle()
    world.tick(2.0)
    assert recovery(world).state is S.WATCHING
    assert world.control.restores()[-1].snapshot == "a1"


def test_what_was_given_up_is_tried_again_with_a_new_policy(world: World) -> None:
    world.lose("node-3", politely=True)
    world.lose("node-2")
    for _ in range(20):
        world.tick(5.0)
        if world.wanted:
            serve(world)
    assert recovery(world).state is S.GIVEN_UP
    world.node(Node(facts("node-5")))
    world.tick(10.0)
    assert not world.wanted
    world.event(events.PolicyChanged(POLICY))
    world.tick(POLICY.grace_s + 3.0)
    serve(world)
    world.settle()
    world.tick(2.0)
    assert recovery(world).state is S.WATCHING


def test_waiting_for_nodes_counts_from_when_they_were_lacking(world: World) -> None:
    """Not from the failure: restores may have been tried for longer than that."""
    world.event(events.PolicyChanged(replace(POLICY, wait_s=20.0, tries=9)))
    crash(world)
    for _ in range(8):
        while not world.wanted:
            world.tick(1.0)
        serve(world)
        answer_until(world, Phase.FETCH)
        failed = next(o for o in world.orders if o.phase is Phase.FETCH)
        world.orders.remove(failed)
        world.event(world.nodes[failed.node].fail(failed, "a disk error"))
        world.settle()
    world.lose("node-2")
    world.lose("node-3", politely=True)
    while not world.wanted:
        world.tick(1.0)
    serve(world)
    world.tick(15.0)
    assert recovery(world).state is S.WAITING


def test_leaders_that_come_and_go_do_not_make_the_wait_for_nodes_longer(world: World) -> None:
    world.event(events.PolicyChanged(replace(POLICY, wait_s=200.0)))
    world.lose("node-3", politely=True)
    world.lose("node-2")
    began = world.now
    for number in range(60):
        if number % 6 == 5:
            world.new_leader()
        for _ in range(8):
            world.tick(1.0)
            if world.wanted:
                serve(world)
        if recovery(world).state is S.GIVEN_UP:
            break
    assert recovery(world).state is S.GIVEN_UP
    lost_s = 10 * (world.policy.adopt_s + 20.0)  # of each leader, at most
    assert 200.0 < world.now - began < 200.0 + lost_s


def test_who_waits_for_the_word_of_an_operator_says_for_which(world: World) -> None:
    world.lose("node-1")
    world.lose("node-2")
    world.tick(POLICY.grace_s + 2.0)
    serve(world)
    (job,) = world.control.jobs()
    assert recovery(world).state is S.WAITING
    for told in (story(world), job.recovery):
        assert "worker 0 was on node-1, which is lost" in told
        assert "`allstop restore llm --old-run-ended`" in told
    for _ in range(15):
        world.tick(5.0)
        if world.wanted:
            serve(world)
    assert recovery(world).state is S.GIVEN_UP
    (job,) = world.control.jobs()
    assert (
        "given up, no nodes that can take it within 60 s: the run of llm may go on" in job.recovery
    )
    assert "--old-run-ended" in job.recovery


def test_another_reason_to_wait_is_told_too(world: World) -> None:
    world.lose("node-3", politely=True)
    world.lose("node-2")
    world.tick(POLICY.grace_s + 2.0)
    serve(world)
    assert "--old-run-ended" not in story(world)
    world.lose("node-1")
    for _ in range(3):
        world.tick(6.0)
        serve(world)
    assert story(world).count("still waits for nodes: the run of llm may go on") == 1
    assert "--old-run-ended" in world.control.jobs()[0].recovery
    world.attach("node-1")
    world.attach("node-2")
    world.tick(3.0)
    assert world.control.jobs()[0].recovery == ""


def test_the_story_tells_of_policies_and_of_nodes_that_were_fenced(world: World) -> None:
    world.lose("node-2")
    world.tick(POLICY.grace_s + 2.0)
    serve(world)
    world.settle()
    world.attach("node-2")
    assert "the policy is set: saved only when somebody asks; restored when it fails" in (
        story(world)
    )
    assert "node-2 is fenced: worker 1 of job llm is of incarnation 1" in story(world)
    assert world.recoveries["llm"] == world.control.recovery("llm")


def test_of_three_workers_two_are_lost_within_a_second() -> None:
    world = World()
    for number in range(1, 6):
        world.node(Node(facts(f"node-{number}")))
    world.start("llm", ["node-1", "node-2", "node-3"])
    world.event(events.PolicyChanged(POLICY))
    world.tick(2.0)
    world.checkpoint("llm", "a1")
    world.settle()
    world.lose("node-1")
    world.tick(0.6)
    world.lose("node-3")
    world.tick(POLICY.grace_s + 2.0)
    asked = serve(world)
    assert "node-1" in asked.cause
    assert "node-3" in asked.cause
    world.settle()
    world.tick(3.0)
    assert not world.wanted
    assert len(world.control.restores()) == 1
    (job,) = world.control.jobs()
    assert set(job.nodes) == {"node-2", "node-4", "node-5"}
    for name in ("node-1", "node-3"):
        world.attach(name)
        assert not world.nodes[name].workers


def hung(world: World) -> None:
    """It takes no step any more, and is to be restored for that."""
    world.event(events.PolicyChanged(HUNG))
    for step in range(100, 130):
        run_on(world, step)
        world.tick(1.0)
    world.tick(35.0)


HUNG = replace(POLICY, hung=10.0)


@pytest.mark.parametrize("begun", [True, False])
def test_a_policy_that_is_off_during_a_recovery_does_not_have_the_job_restored_again(
    world: World, begun: bool
) -> None:
    """It is back, at an earlier step than the one that it was hung at."""
    hung(world)
    if begun:
        serve(world)
        answer_until(world, Phase.CLEAR)
    world.event(events.PolicyChanged(JobPolicy("llm")))
    if not begun:
        serve(world)
    world.settle()
    run_on(world, 20)
    world.tick(2.0)
    assert recovery(world).state is S.WATCHING
    world.event(events.PolicyChanged(HUNG))
    for step in range(21, 100):
        run_on(world, step)
        world.tick(1.0)
    assert not world.wanted
    assert recovery(world).state is S.WATCHING
    assert len(world.control.restores()) == 1


def test_a_job_that_moves_again_while_the_policy_is_off_is_well(world: World) -> None:
    hung(world)
    serve(world)
    answer_until(world, Phase.FETCH)
    world.event(events.PolicyChanged(JobPolicy("llm")))
    failed = next(o for o in world.orders if o.phase is Phase.FETCH)
    world.orders.remove(failed)
    world.event(world.nodes[failed.node].fail(failed, "a disk error"))
    world.settle()
    world.tick(100.0)
    assert not world.wanted
    assert "is left at that: a disk error" in story(world)
    world.event(events.PolicyChanged(HUNG))
    world.tick(2.0)
    assert recovery(world).state is S.WATCHING
    assert not world.wanted


def test_a_job_that_is_stopped_while_the_policy_is_off_is_finished(world: World) -> None:
    world.event(events.PolicyChanged(JobPolicy("llm")))
    world.checkpoint("llm", "a2", stop=True)
    world.settle()
    for name in ("node-1", "node-2"):
        crash(world, name, -15)
    world.event(events.PolicyChanged(POLICY))
    world.tick(30.0)
    assert recovery(world).state is S.FINISHED
    assert not world.wanted


def unready(world: World, error: AllstopError, *, until_s: float) -> None:
    """Whatever is asked for cannot be."""
    until = world.now + until_s
    while world.now < until:
        if world.wanted:
            world.wanted.clear()
            world.event(events.RestoreUnready("llm", failure_of(error)))
        world.tick(1.0)


def test_a_restore_that_cannot_be_asked_for_is_told_of_and_given_up_in_the_end(
    world: World,
) -> None:
    crash(world)
    unready(world, StoreError("the store did not answer in time"), until_s=30.0)
    assert story(world).count("cannot be asked for: the store did not answer in time") == 1
    unready(world, SetupError("no key was given"), until_s=10.0)
    assert story(world).count("cannot be asked for: no key was given") == 1
    assert recovery(world).state is S.RECOVERING
    unready(world, SetupError("no key was given"), until_s=90.0)
    assert recovery(world).state is S.GIVEN_UP
    assert "no restore could be asked for within 60 s: no key was given" in story(world)


def test_what_is_in_the_way_for_a_while_is_over_once_a_restore_begins(world: World) -> None:
    crash(world)
    unready(world, StoreError("the store did not answer in time"), until_s=50.0)
    back(world)
    assert recovery(world).state is S.WATCHING
    crash(world, "node-1")
    unready(world, StoreError("the store did not answer in time"), until_s=50.0)
    assert recovery(world).state is S.RECOVERING


def test_shims_stay_for_as_long_as_a_recovery_tries_or_waits(world: World) -> None:
    world.event(events.PolicyChanged(replace(POLICY, wait_s=1000.0)))
    world.lose("node-3", politely=True)
    crash(world)
    world.tick(0.5)
    assert not world.stays
    world.tick(2.5)
    assert {stay.node for stay in world.stays} == {"node-1", "node-2"}
    world.lose("node-1")
    serve(world)
    until = {stay.node: world.now + stay.for_s for stay in world.stays}
    for _ in range(400):
        world.stays.clear()
        world.tick(1.0)
        if world.wanted:
            serve(world)
        until |= {stay.node: world.now + stay.for_s for stay in world.stays}
        assert until["node-2"] > world.now + 60.0
    assert recovery(world).state is S.WAITING
    world.attach("node-1")
    world.tick(6.0)
    back(world)
    assert recovery(world).state is S.WATCHING
    world.stays.clear()
    world.tick(100.0)
    assert not world.stays


def test_a_job_that_is_down_when_the_policy_is_set_is_told_of_and_left_alone() -> None:
    world = two_and_a_spare()
    world.checkpoint("llm", "a1")
    world.settle()
    crash(world)
    world.event(events.PolicyChanged(POLICY))
    world.tick(5.0)
    assert world.control.jobs()[0].recovery == ""  # it may be on its way
    world.tick(60.0)
    assert not world.wanted
    assert story(world).count("`allstop restore llm` brings it back now") == 1
    assert "worker 1 on node-2 ended with exit code 1" in world.control.jobs()[0].recovery
    world.event(events.PolicyChanged(POLICY))
    world.tick(15.0)
    assert story(world).count("`allstop restore llm` brings it back now") == 2
    world.restore("llm", "r1", "a1")
    world.settle()
    world.tick(2.0)
    assert recovery(world).state is S.WATCHING
    assert world.control.jobs()[0].recovery == ""
