"""No step for many usual ones is a failure, unless a rank says that it takes none."""

from __future__ import annotations

from dataclasses import replace

import pytest

from coordinator.core import events
from coordinator.core.job_policy import RecoveryState
from coordinator.core.model import Phase
from tests.support.core_checks import until
from tests.support.core_recovery import POLICY, crash, recovery, run_on, serve, story, watched
from tests.support.core_world import World

S = RecoveryState


@pytest.fixture
def world() -> World:
    return watched()


def stepping(world: World, *, until: int = 130) -> None:
    """Long enough for what a step usually takes to be known."""
    for step in range(until - 30, until):
        run_on(world, step)
        world.tick(1.0)


def say_no_steps(world: World, *, says: bool) -> None:
    world.nodes["node-2"].workers[("llm", 1)].no_steps = says
    world.report("node-2")


def test_who_is_late_is_named(world: World) -> None:
    world.event(events.PolicyChanged(replace(POLICY, hung=10.0)))
    stepping(world)
    late = world.nodes["node-2"].workers[("llm", 1)]
    late.boundaries = {2: 129, 3: 128}
    world.report("node-2")
    world.tick(35.0)
    assert "rank 3 on node-2 at step 128, others at step 129" in serve(world).cause


def test_a_rank_that_says_that_it_takes_no_steps_is_not_hung(world: World) -> None:
    world.event(events.PolicyChanged(replace(POLICY, hung=10.0)))
    stepping(world)
    say_no_steps(world, says=True)
    world.tick(500.0)
    assert not world.wanted
    say_no_steps(world, says=False)
    world.tick(25.0)
    assert not world.wanted  # counted from when it is to step again
    world.tick(10.0)
    assert "no step for" in serve(world).cause


def test_a_job_that_is_hung_stays_so_while_nothing_can_be_restored(world: World) -> None:
    """It is whole all the time: that must not count as one more failure a second."""
    world.event(events.PolicyChanged(replace(POLICY, hung=10.0, wait_s=30.0)))
    world.snapshots["a1"] = replace(
        world.snapshots["a1"],
        workers=tuple(replace(w, kernel="7.0.0") for w in world.snapshots["a1"].workers),
    )
    stepping(world)
    for _ in range(50):
        world.tick(1.0)
        if world.wanted:
            serve(world)
    assert recovery(world).state is S.WAITING
    assert world.control.recovery("llm").crashes == 1
    run_on(world, 140)
    world.tick(2.0)
    assert recovery(world).state is S.WATCHING
    assert "whole again by itself" in story(world)


def test_checkpoints_that_are_tried_in_vain_do_not_hide_a_hang(world: World) -> None:
    world.event(events.PolicyChanged(replace(POLICY, hung=20.0)))
    stepping(world)
    for number in range(6):
        if world.wanted:
            break
        world.tick(8.0)
        until(world, Phase.PARK, f"b{number}")
        world.tick(world.policy.park_s + 1.0)  # nobody comes to the target
        world.settle()
    assert "no step for 3" in serve(world).cause
    assert number == 4


def test_ranks_that_wait_for_one_that_has_ended_well_are_hung_too(world: World) -> None:
    world.event(events.PolicyChanged(replace(POLICY, hung=10.0)))
    stepping(world)
    crash(world, "node-2", 0)
    world.tick(20.0)
    assert not world.wanted
    world.tick(15.0)
    assert "no step for" in serve(world).cause


def test_a_new_leader_knows_what_a_step_usually_takes(world: World) -> None:
    world.event(events.PolicyChanged(replace(POLICY, hung=10.0)))
    stepping(world)
    world.checkpoint("llm", "a2")
    world.settle()
    world.new_leader()
    world.tick(world.policy.adopt_s + 33.0)
    assert "no step for" in serve(world).cause


def test_a_hung_run_counts_as_a_failure_of_the_job(world: World) -> None:
    """Nothing of it is lost or has ended, and it failed all the same."""
    world.event(events.PolicyChanged(replace(POLICY, hung=10.0)))
    stepping(world)
    before = world.histories["llm"].failures if "llm" in world.histories else 0
    world.tick(35.0)
    serve(world)
    assert world.histories["llm"].failures == before + 1
    assert all(not node.failures for node in world.histories["llm"].nodes)


def out_of_step(world: World, seconds: int, *, stuck: int, step: int = 130) -> None:
    """Every rank but one goes on, and does not wait for it."""
    for each in range(step, step + seconds):
        for name in ("node-1", "node-2"):
            for worker in world.nodes[name].workers.values():
                worker.boundaries = {
                    rank: before if rank == stuck else each
                    for rank, before in worker.boundaries.items()
                }
            world.report(name)
        world.tick(1.0)


def test_a_rank_that_never_moves_is_not_hidden_by_others_that_do_not_wait_for_it(
    world: World,
) -> None:
    world.event(events.PolicyChanged(replace(POLICY, hung=10.0)))
    stepping(world)
    out_of_step(world, 25, stuck=3)
    assert not world.wanted
    out_of_step(world, 12, stuck=3, step=155)
    cause = serve(world).cause
    assert "rank 3: no step for 3" in cause
    assert "rank 3 on node-2 at step 129" in cause
    world.settle()
    world.tick(2.0)
    assert recovery(world).state is S.WATCHING
    world.tick(2.0)
    assert not world.wanted


def test_such_a_rank_keeps_the_job_from_being_well_until_it_moves(world: World) -> None:
    world.event(events.PolicyChanged(replace(POLICY, hung=10.0, wait_s=90.0)))
    world.snapshots["a1"] = replace(
        world.snapshots["a1"],
        workers=tuple(replace(w, kernel="7.0.0") for w in world.snapshots["a1"].workers),
    )
    stepping(world)
    out_of_step(world, 36, stuck=3)
    serve(world)
    assert recovery(world).state is S.WAITING
    out_of_step(world, 3, stuck=3, step=170)
    assert recovery(world).state is S.WAITING
    out_of_step(world, 3, stuck=-1, step=175)
    assert recovery(world).state is S.WATCHING


def test_a_rank_that_usually_steps_more_seldom_than_others_is_measured_by_itself(
    world: World,
) -> None:
    world.event(events.PolicyChanged(replace(POLICY, hung=10.0)))
    stepping(world)
    for turn in range(6):
        out_of_step(world, 20, stuck=3, step=130 + 20 * turn)
        world.nodes["node-2"].workers[("llm", 1)].boundaries[3] += 1
    out_of_step(world, 60, stuck=3, step=250)
    assert not world.wanted
    world.tick(35.0)  # the others too
    assert "no step for" in serve(world).cause


def test_a_hung_job_that_is_given_up_stays_so_while_it_is_being_killed(world: World) -> None:
    world.event(events.PolicyChanged(replace(POLICY, hung=10.0)))
    world.snapshots.clear()
    stepping(world)
    world.slow_fences = True
    world.tick(35.0)
    serve(world)
    assert recovery(world).state is S.GIVEN_UP
    for _ in range(4):
        world.tick(1.0)
        assert recovery(world).state is S.GIVEN_UP
