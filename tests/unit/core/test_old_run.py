"""A restore needs to be sure that the run before takes no more steps, out of sight included."""

import pytest

from coordinator.core import events
from coordinator.core.errors import OldRunUnseen
from coordinator.core.model import Phase, RestoreState
from tests.support.core_checks import answer_until
from tests.support.core_restores import half_lost_world, incarnations, state, until
from tests.support.core_shims import Node, Worker, facts
from tests.support.core_world import World

S = RestoreState


@pytest.fixture
def world() -> World:
    """Worker 0 runs on node-1; node-2 with worker 1 is lost; two spares."""
    made = half_lost_world()
    made.node(Node(facts("node-4")))
    return made


def restore(world: World, restore: str = "r1", *, sure: bool = False, cause: str = "") -> str:
    """Ask for one to its end; how that was, in a word."""
    made = world.snapshots["a1"]
    files = tuple(n.facts for n in world.nodes.values() if n.attached)
    world.event(
        events.RestoreRequested(
            "llm", restore, made, 0.0, 2000.0, files, old_run_ended=sure, cause=cause
        )
    )
    world.settle()
    refused = world.refused.get(restore)
    return refused.failure.kind if refused is not None else str(state(world, restore))


UNSEEN = OldRunUnseen.__name__


def test_a_run_of_which_no_node_is_in_reach_is_not_doubled(world: World) -> None:
    world.lose("node-1", "no heartbeat")
    assert restore(world) == UNSEEN
    failure = world.refused["r1"].failure
    assert "worker 0 was on node-1, which is lost: no heartbeat" in failure.what
    assert "worker 1 was on node-2, which is lost: power cut" in failure.what
    assert "--old-run-ended" in failure.advice
    assert failure.definite
    assert not world.restores
    assert restore(world, "r2", sure=True) == S.RUNNING


def test_one_worker_in_reach_is_enough_since_it_is_ended(world: World) -> None:
    assert restore(world) == S.RUNNING
    assert incarnations(world)["node-1"] == [2]


def test_what_is_brought_back_is_a_run_of_its_own(world: World) -> None:
    assert restore(world) == S.RUNNING
    world.lose("node-1")
    world.lose("node-3")
    assert restore(world, "r2") == UNSEEN


@pytest.mark.parametrize("how", ["exited", "left", "new shim", "reported"])
def test_a_run_is_over_once_one_worker_is_known_to_be_gone(world: World, how: str) -> None:
    if how == "exited":
        world.event(events.WorkerExited("node-1", "llm", 0, 1, 1))
    elif how == "new shim":
        world.nodes["node-1"].workers.clear()
        world.attach("node-1", new_session=True)
    elif how == "reported":
        world.nodes["node-1"].workers[("llm", 0)].state = "exited"
        world.report("node-1")
    world.lose("node-1", politely=how == "left")
    assert restore(world) == S.RUNNING


def test_a_worker_that_was_started_again_makes_the_run_whole_again(world: World) -> None:
    world.attach("node-2")
    world.event(events.WorkerExited("node-1", "llm", 0, 1, 1))
    world.nodes["node-1"].workers[("llm", 0)] = Worker("llm", 0, 2, 2, {0: 12})
    world.attach("node-1", new_session=True)
    world.store()
    assert incarnations(world)["node-1"] == incarnations(world)["node-2"]
    world.lose("node-1")
    world.lose("node-2")
    assert restore(world) == UNSEEN


def test_the_last_old_worker_may_go_out_of_reach_while_it_is_to_be_cleared(world: World) -> None:
    world.nodes["node-1"].facts = facts("node-1", staging_free_bytes=0)
    world.attach("node-1")
    until(world, Phase.CLEAR)
    world.lose("node-1")
    world.settle()
    assert state(world) is S.FAILED
    assert "went out of reach" in world.restores["r1"].reason
    assert restore(world, "r2") == UNSEEN, "that it was told to end is not that it has ended"
    world.attach("node-1")
    assert restore(world, "r3") == S.RUNNING


# -- a new leader ----------------------------------------------------------------------------------


def lose_the_leader(world: World, *attached: str) -> None:
    """A new leader of which only these nodes are in reach."""
    for name, node in world.nodes.items():
        node.attached = name in attached
    world.new_leader()


def test_a_new_leader_does_not_take_who_has_not_come_yet_for_gone(world: World) -> None:
    lose_the_leader(world, "node-3", "node-4")
    assert restore(world) == UNSEEN
    assert restore(world, "r2", sure=True) == S.RUNNING


def test_a_new_leader_needs_one_of_them(world: World) -> None:
    lose_the_leader(world, "node-1", "node-3")
    assert restore(world) == S.RUNNING


@pytest.mark.parametrize("cause", ["", "worker 0 is on no node"])
def test_a_new_leader_believes_a_node_that_comes_without_its_worker_for_recoveries(
    world: World, cause: str
) -> None:
    lose_the_leader(world, "node-3", "node-4")
    assert restore(world, cause=cause) == UNSEEN
    world.nodes["node-1"].workers.clear()
    world.attach("node-1", new_session=True)
    assert restore(world, "r2", cause=cause) == (S.RUNNING if cause else UNSEEN)


@pytest.mark.parametrize("told", [True, False])
def test_a_new_leader_knows_that_a_job_was_stopped(world: World, told: bool) -> None:
    world.attach("node-2")
    world.checkpoint("llm", "a2", stop=True)
    answer_until(world, Phase.STOP)
    if not told:
        world.lose("node-1")
        world.lose("node-2")
    world.settle()
    world.tick(world.policy.stop_s + 1)
    world.settle()
    assert world.attempts["a2"].state == "COMMITTED"
    assert world.attempts["a2"].owed == (() if told else (0, 1))
    lose_the_leader(world, "node-3", "node-4")
    assert restore(world) == (S.RUNNING if told else UNSEEN)


@pytest.mark.parametrize("phase", [Phase.CLEAR, Phase.RESTORE])
def test_new_leaders_know_what_a_restore_had_cleared(world: World, phase: Phase) -> None:
    until(world, phase)
    if phase is Phase.CLEAR:
        world.answer(next(o for o in world.orders if o.node == "node-1"))
    world.store()
    world.new_leader()
    world.settle()
    assert state(world) is S.FAILED
    lose_the_leader(world, "node-3", "node-4")
    assert restore(world, "r2") == S.RUNNING


def test_new_leaders_know_what_a_restore_had_not_cleared(world: World) -> None:
    until(world, Phase.CLEAR)
    world.store()
    lose_the_leader(world, "node-3", "node-4")
    world.tick(world.policy.adopt_s + 1)
    world.settle()
    assert state(world) is S.FAILED
    assert restore(world, "r2") == UNSEEN
    lose_the_leader(world, "node-3", "node-4")
    assert restore(world, "r3") == UNSEEN
    world.attach("node-2")
    world.settle()
    world.report("node-2")
    assert restore(world, "r4") == S.RUNNING
