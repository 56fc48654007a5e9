"""Jobs that fail again and again: recognised, slower each time, older snapshots, and an end."""

from __future__ import annotations

from dataclasses import replace

import pytest

from coordinator.core import events
from coordinator.core.job_policy import LastResort, RecoveryState
from coordinator.core.model import Phase, RestoreState
from tests.support.core_checks import answer_until, two_and_a_spare
from tests.support.core_recovery import (
    POLICY,
    back,
    crash,
    recovery,
    run_on,
    saved,
    serve,
    story,
    watched,
)
from tests.support.core_shims import Node, facts
from tests.support.core_world import World

S = RecoveryState


@pytest.fixture
def world() -> World:
    made = watched()
    saved(made, "a2", 50)
    return made


def fail_at(world: World, *steps: int) -> list[str]:
    """The job fails at each of these steps in turn; returns what each recovery restored."""
    restored = []
    for step in steps:
        crash(world, step=step)
        back(world)
        restored.append(world.control.restores()[-1].snapshot)
    return restored


def test_crashes_at_one_step_are_told_by_the_ranks_last_word_and_not_by_reports(
    world: World,
) -> None:
    """Reports are seconds old; the control page has the step at which each rank ended."""
    reported = iter((41, 57, 48))
    restored = []
    for step in reported:
        run_on(world, step)
        world.tick(1.0)
        restored += fail_at(world, 60)
    assert restored == ["a2", "a2", "a1"]
    assert "a crash loop: it has ended 2 times at step 60" in story(world)
    assert "a crash loop: it has ended 3 times at step 60" in story(world)
    assert "a2 is left behind" in story(world)


def test_a_job_that_gets_no_further_is_in_a_loop_wherever_it_ends(world: World) -> None:
    assert fail_at(world, 60, 57, 59) == ["a2", "a2", "a1"]
    assert "it has ended 3 times at step 60 or before" in story(world)


def test_one_that_gets_further_each_time_is_not(world: World) -> None:
    assert fail_at(world, 60, 61, 62, 63, 64) == ["a2"] * 5
    assert "crash loop" not in story(world)


def test_it_is_tried_ever_more_slowly(world: World) -> None:
    patient = replace(POLICY, tries=9)
    world.event(events.PolicyChanged(patient))
    waited = []
    for _ in range(9):
        crash(world, step=60)
        began = world.now
        back(world)
        waited.append(world.now - 2.0 - began)
    assert waited[0] == pytest.approx(1.0, abs=1.1)
    assert waited[4] == pytest.approx(9.0, abs=1.1)
    assert waited[8] == pytest.approx(61.0, abs=1.1)


def test_snapshots_of_runs_that_got_no_further_are_left_behind_too(world: World) -> None:
    """Else there is always a newest one to go back to, and no end."""
    fail_at(world, 60, 60, 60)  # now from a1
    saved(world, "a3", 30)
    saved(world, "a4", 55)
    assert recovery(world).suspects == ("a3", "a4")
    assert fail_at(world, 60) == ["a1"]
    assert set(recovery(world).skipped) == {"a2", "a3", "a4"}


def test_but_not_for_a_node_that_is_lost(world: World) -> None:
    fail_at(world, 60, 60, 60)
    saved(world, "a3", 55)
    world.lose("node-2")
    back(world)
    assert world.control.restores()[-1].snapshot == "a3"
    assert recovery(world).state is S.WATCHING


def test_a_snapshot_from_further_on_ends_it(world: World) -> None:
    fail_at(world, 60, 60, 60)
    saved(world, "a3", 55)
    saved(world, "a4", 70)
    told = recovery(world)
    assert (told.skipped, told.suspects, told.crashes, told.left_behind) == ((), (), 0, 0)
    assert fail_at(world, 75) == ["a4"]


def test_it_ends_after_as_many_snapshots_as_tries(world: World) -> None:
    for number in range(3, 9):
        saved(world, f"a{number}", 50 + number)
    for _ in range(40):
        if recovery(world).state is S.GIVEN_UP:
            break
        crash(world, step=60)
        for _ in range(70):
            world.tick(1.0)
            if world.wanted:
                serve(world)
                world.settle()
                world.tick(2.0)
                break
    assert recovery(world).state is S.GIVEN_UP
    assert [r.snapshot for r in world.control.restores()] == 2 * ["a8"] + 3 * ["a7"] + 3 * ["a6"]
    assert "given up, 3 snapshots have led nowhere" in story(world)
    world.tick(300.0)
    assert not world.wanted


def test_starts_from_scratch_are_counted_over_leaders(world: World) -> None:
    world.event(events.PolicyChanged(replace(POLICY, tries=1, last_resort=LastResort.COLD_START)))
    for _ in range(12):
        if recovery(world).state is S.GIVEN_UP:
            break
        crash(world, step=60)
        for _ in range(70):
            world.tick(1.0)
            if world.wanted:
                serve(world)
                world.settle()
                world.tick(2.0)
                break
        world.new_leader()
        world.settle()
        world.tick(world.policy.adopt_s + 2.0)
    assert recovery(world).state is S.GIVEN_UP
    assert sum(restore.cold for restore in world.control.restores()) == 1


def test_without_a_snapshot_there_is_nothing_to_start_from_scratch() -> None:
    world = two_and_a_spare()
    world.event(events.PolicyChanged(replace(POLICY, last_resort=LastResort.COLD_START)))
    world.tick(2.0)
    crash(world)
    world.tick(3.0)
    assert not serve(world).scratch
    assert serve(world).scratch
    assert recovery(world).state is S.GIVEN_UP
    assert not world.wanted
    assert "cannot be started from scratch, its commands are kept with its snapshots" in story(
        world
    )


def test_nodes_that_are_lost_again_and_again_poison_nothing(world: World) -> None:
    for number in range(4):
        world.node(Node(facts(f"node-{number + 4}")))
        world.lose(f"node-{number + 2}")
        back(world)
    assert "crash loop" not in story(world)
    assert {r.snapshot for r in world.control.restores()} == {"a2"}


def test_spares_that_die_while_fetching_are_no_fault_of_the_snapshot(world: World) -> None:
    for number in range(4, 9):
        world.node(Node(facts(f"node-{number}")))
    world.lose("node-2")
    for number in range(3, 8):
        while not world.wanted:
            world.tick(1.0)
        serve(world)
        answer_until(world, Phase.FETCH)
        (spare,) = {o.node for o in world.orders if o.node not in ("node-1", "node-2")}
        assert spare == f"node-{number}"
        world.lose(spare)
        world.settle()
        assert world.control.restores()[-1].state is RestoreState.FAILED
    back(world)
    assert recovery(world).state is S.WATCHING
    assert {r.snapshot for r in world.control.restores()} == {"a2"}
    assert "failed, and not of its snapshot: node node-5 was lost" in story(world)


def test_tries_of_a_snapshot_begin_anew_once_it_runs(world: World) -> None:
    world.event(events.PolicyChanged(replace(POLICY, tries=2)))
    for step in (60, 70, 80):
        at = next(node.name for node in world.nodes.values() if ("llm", 1) in node.workers)
        crash(world, at, step=step)
        world.tick(2.5)
        serve(world)
        answer_until(world, Phase.FETCH)
        failed = next(o for o in world.orders if o.phase is Phase.FETCH)
        world.orders.remove(failed)
        world.event(world.nodes[failed.node].fail(failed, "a disk error"))
        world.settle()
        back(world)
    assert {r.snapshot for r in world.control.restores()} == {"a2"}
