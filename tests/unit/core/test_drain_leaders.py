"""A drain goes on under the next leader, whatever the one before had done."""

from __future__ import annotations

from dataclasses import replace

import pytest

from coordinator.core import events
from coordinator.core.drain_records import DrainedJob, DrainState, DrainStep
from coordinator.core.model import Phase
from tests.support.core_checks import two_and_a_spare
from tests.support.core_drains import drain, go_on, on, places, record, serve, state, tell
from tests.support.core_world import World

D = DrainState
S = DrainStep


@pytest.fixture
def world() -> World:
    """A job of two workers on node-1 and node-2, and a spare, node-3."""
    return two_and_a_spare()


def stop_it(world: World) -> None:
    """The drain has stopped the job, and its restore was not asked for yet."""
    drain(world)
    world.store()
    world.tick(1.0)
    serve(world)
    world.settle()
    world.due, world.wanted = [], []


def test_a_leader_that_reads_an_older_state_sees_that_the_job_was_stopped(world: World) -> None:
    stop_it(world)
    jobs = (DrainedJob("llm"),)  # what was written later has been lost
    world.drains["node-2"] = replace(world.drains["node-2"], jobs=jobs)
    world.new_leader()
    go_on(world, world.policy.adopt_s + 20.0)
    assert (state(world), places(world)) == (D.DRAINED, ["node-1", "node-3"])
    assert len(world.control.attempts()) == 1, "it is not stopped a second time"


def test_a_job_that_no_leader_knows_any_more_does_not_keep_a_drain(world: World) -> None:
    drain(world)
    world.store()
    kept = world.drains["node-2"]
    world.drains["node-2"] = replace(kept, jobs=(*kept.jobs, DrainedJob("forgotten")))
    world.new_leader()
    go_on(world, world.policy.adopt_s + 20.0)
    assert state(world) is D.DRAINED


def test_what_an_earlier_drain_has_stopped_is_not_taken_for_this_ones(world: World) -> None:
    stop_it(world)
    world.lose("node-3")
    world.new_leader()
    go_on(world, world.policy.adopt_s + 20.0)
    assert (state(world), places(world)) == (D.FAILED, ["node-1", "node-2"])
    world.attach("node-3", new_session=True)
    drain(world)
    world.store()
    crashed = world.nodes["node-1"].workers.pop(("llm", 0))
    world.event(events.WorkerExited("node-1", "llm", 0, crashed.incarnation, 1))
    world.tick(5.0)
    assert not world.due
    assert not world.wanted, "that is for the job's recovery, or an operator"


# -- a leader that is killed ---------------------------------------------------------------------


@pytest.mark.parametrize("spare_dies", [False, True])
@pytest.mark.parametrize("after", range(40))
def test_a_leader_killed_after_any_step_leaves_it_to_the_next(
    world: World, after: int, spare_dies: bool
) -> None:
    """`after` so many steps (an answer of a shim or the store, half a second) another leads."""
    world.checkpoint("llm", "a0")
    world.settle()
    request = drain(world)
    world.store_one()
    assert world.last[request].last
    for taken in range(400):
        if taken == after:
            world.due, world.wanted = [], []
            world.new_leader()
        if spare_dies and any(o.phase is Phase.FETCH for o in world.orders):
            world.lose("node-3")
            spare_dies = False
        if world.writes:
            world.store_one()
        elif world.orders:
            world.answer(world.orders[0])
        elif not serve(world):
            tell(world)
            world.tick(0.5)
    if world.nodes["node-3"].attached:
        assert (state(world), places(world)) == (D.DRAINED, ["node-1", "node-3"])
        assert on(world, "node-2") == []
    else:
        assert (state(world), places(world)) == (D.FAILED, ["node-1", "node-2"])
    assert world.drains.get("node-2") == record(world)
