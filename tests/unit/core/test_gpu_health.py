"""Sick GPUs: the whole core over time, with nodes, a store, drains and recoveries."""

from __future__ import annotations

from dataclasses import replace

import pytest

from coordinator.core.drain_records import DrainState
from coordinator.core.health_records import TroubleKind
from coordinator.core.health_rules import HealthRule, HealthRules, Verdict
from coordinator.core.job_policy import JobPolicy, OnFailure
from coordinator.core.model import AttemptState, Phase, RestoreState
from tests.support.core_drains import go_on, places, serve, state
from tests.support.core_gpus import (
    POLICY,
    gpu_node,
    gpu_world,
    health,
    story,
    told,
    trouble,
)
from tests.support.core_world import World

LEAVE = JobPolicy("llm", on_failure=OnFailure.LEAVE)


@pytest.fixture
def world() -> World:
    """A job of two workers with GPUs, a snapshot, and two spares."""
    return gpu_world("node-3", "node-4")


def gpu_of(world: World, node: str, index: int = 0) -> str:
    (view,) = (each for each in world.control.nodes() if each.facts.node == node)
    return view.facts.gpus[index].sick


# -- what the rules say ----------------------------------------------------------------------------


def test_what_cannot_be_saved_goes_back_to_the_last_snapshot_on_other_nodes(world: World) -> None:
    told(world, "node-2", trouble("node-2", 79))
    go_on(world, 20.0)
    assert places(world) == ["node-1", "node-3"]
    assert [each.attempt for each in world.control.attempts()] == ["a1"], "nothing was saved"
    (restore,) = world.control.restores()
    assert (restore.state, restore.snapshot) == (RestoreState.RUNNING, "a1")
    assert "Xid 79" in restore.cause
    assert "GPU 0 (GPU-node-2-0): Xid 79, it has fallen off the bus [restore]" in story(world)
    assert "it is given up at step" in story(world)
    assert "[restore]" in health(world, "node-2")
    assert state(world) is DrainState.UNDRAINED


def test_what_can_be_saved_is_drained_and_no_step_is_lost(world: World) -> None:
    told(world, "node-2", trouble("node-2", 64))
    go_on(world, 20.0)
    assert places(world) == ["node-1", "node-3"]
    assert state(world) is DrainState.DRAINED
    stopped = world.control.attempts()[-1]
    assert (stopped.state, stopped.stop) == (AttemptState.COMMITTED, True)
    assert 590 < stopped.deadline_s <= 600
    assert world.control.restores()[-1].snapshot == stopped.attempt
    assert not world.snapshots[stopped.attempt].suspect
    assert "Xid 64" in story(world)
    assert "it is to be drained, within 600 s" in health(world, "node-2")


@pytest.mark.parametrize("code", [13, 63, 154, 9999])
def test_what_is_ignored_is_shown_and_nothing_else(world: World, code: int) -> None:
    told(world, "node-2", trouble("node-2", code))
    go_on(world, 20.0)
    assert places(world) == ["node-1", "node-2"]
    assert len(world.control.attempts()) == 1
    assert not world.control.restores()
    assert f"Xid {code}" in health(world, "node-2")
    assert "[ignore]" in health(world, "node-2")
    assert not gpu_of(world, "node-2")


def test_trouble_from_before_moves_nobody_and_keeps_the_node_free(world: World) -> None:
    told(world, "node-2", trouble("node-2", 79, fresh=False))
    told(world, "node-3", trouble("node-3", 79, fresh=False))
    go_on(world, 10.0)
    assert places(world) == ["node-1", "node-2"]
    assert gpu_of(world, "node-3") == "Xid 79, it has fallen off the bus"
    world.lose("node-2")
    go_on(world, 30.0)
    assert places(world) == ["node-1", "node-4"], "node-3 has a sick GPU"


def test_the_same_trouble_told_again_does_nothing_more(world: World) -> None:
    told(world, "node-2", trouble("node-2", 64))
    go_on(world, 20.0)
    attempts, restores = len(world.control.attempts()), len(world.control.restores())
    lines = story(world)
    for _ in range(3):
        told(world, "node-2", trouble("node-2", 64))
        go_on(world, 5.0)
    assert (len(world.control.attempts()), len(world.control.restores())) == (attempts, restores)
    assert story(world) == lines
    assert len([c for c in health(world, "node-2").split(" | ") if "to be drained" in c]) == 1


def test_a_worse_trouble_takes_the_place_of_a_drain_that_has_not_begun(world: World) -> None:
    told(world, "node-2", trouble("node-2", 64))
    told(world, "node-2", trouble("node-2", 64), trouble("node-2", 79))
    go_on(world, 20.0)
    assert places(world) == ["node-1", "node-3"]
    assert state(world) is DrainState.UNDRAINED
    assert [each.attempt for each in world.control.attempts()] == ["a1"]


def test_a_gpu_that_is_well_again_is_used_again(world: World) -> None:
    told(world, "node-2", trouble("node-2", 79, fresh=False))
    assert gpu_of(world, "node-2")
    told(world, "node-2")
    assert not gpu_of(world, "node-2")
    assert health(world, "node-2") == ""


def test_a_gpu_that_is_well_again_moves_nobody_any_more() -> None:
    world = gpu_world()
    told(world, "node-2", trouble("node-2", 79))
    go_on(world, 5.0)
    told(world, "node-2", trouble("node-2", 79))
    assert story(world).count("[restore]") == 1, "it was told before"
    told(world, "node-2")
    assert health(world, "node-2").endswith("its GPUs are well again")
    world.node(gpu_node("node-3"))
    go_on(world, 100.0)
    assert places(world) == ["node-1", "node-2"]


def test_another_shim_process_begins_with_nothing_known(world: World) -> None:
    told(world, "node-3", trouble("node-3", 79, fresh=False))
    world.lose("node-3")
    world.nodes["node-3"].session += 1
    world.attach("node-3")
    assert not gpu_of(world, "node-3")


def test_a_stream_that_is_opened_anew_forgets_nothing(world: World) -> None:
    told(world, "node-3", trouble("node-3", 79, fresh=False))
    world.lose("node-3")
    world.attach("node-3")
    assert gpu_of(world, "node-3")


def test_trouble_of_a_gpu_without_a_name_keeps_workers_with_gpus_away(world: World) -> None:
    nobody = replace(trouble("node-3", 79, fresh=False), uuid="", index=-1)
    told(world, "node-3", nobody)
    world.lose("node-2")
    go_on(world, 30.0)
    assert places(world) == ["node-1", "node-4"]


# -- the job's policy ------------------------------------------------------------------------------


@pytest.mark.parametrize("policy", [LEAVE, None])
@pytest.mark.parametrize("code", [64, 79])
def test_a_job_that_is_to_be_left_alone_is_told_of(policy: JobPolicy | None, code: int) -> None:
    world = gpu_world("node-3", policy=policy)
    told(world, "node-2", trouble("node-2", code))
    go_on(world, 20.0)
    assert places(world) == ["node-1", "node-2"]
    assert len(world.control.attempts()) == 1
    assert state(world) is DrainState.UNDRAINED
    left = "job llm is left on node-2, as its policy is to leave it alone"
    assert story(world).count(left) == 1
    assert left in health(world, "node-2")


def test_the_story_of_a_job_without_a_policy_outlives_the_leader() -> None:
    world = gpu_world("node-3", policy=None)
    told(world, "node-2", trouble("node-2", 79))
    go_on(world, 5.0)
    before = story(world)
    world.new_leader()
    assert before
    assert story(world) == before


def test_a_job_without_gpus_there_is_not_touched_by_what_is_restored() -> None:
    world = gpu_world("node-3")
    world.node(gpu_node("node-5"))
    world.start("cpu", ["node-5"])
    told(world, "node-5", trouble("node-5", 79))
    go_on(world, 20.0)
    assert not world.control.restores()
    assert not world.control.recovery("cpu").story


# -- nowhere to go, and no time --------------------------------------------------------------------


@pytest.mark.parametrize("code", [64, 79])
def test_without_other_nodes_the_run_goes_on_until_one_comes(code: int) -> None:
    world = gpu_world()
    told(world, "node-2", trouble("node-2", code))
    go_on(world, 30.0)
    assert places(world) == ["node-1", "node-2"], "nothing is stopped for nothing"
    assert code == 64 or "it goes on where it is: " in story(world)
    world.node(gpu_node("node-3"))
    go_on(world, 20.0)
    assert places(world) == ["node-1", "node-3"]


def test_without_other_nodes_what_can_be_saved_is_saved() -> None:
    world = gpu_world()
    told(world, "node-2", trouble("node-2", 64))
    go_on(world, 20.0)
    saved = world.control.attempts()[-1]
    assert (saved.state, saved.stop) == (AttemptState.COMMITTED, False)
    assert len(world.control.attempts()) == 2, "once, however often it is tried to drain it"


def test_it_is_not_tried_without_end() -> None:
    world = gpu_world(policy=replace(POLICY, wait_s=60.0))
    told(world, "node-2", trouble("node-2", 79))
    go_on(world, 120.0)
    assert "nothing more is tried after 60 s" in health(world, "node-2")
    world.wanted.clear()
    world.tick(300.0)
    assert not world.wanted


def test_where_there_is_no_time_to_save_it_is_restored_at_once() -> None:
    """The row gives less time than this job's checkpoints are known to take."""
    short = HealthRule("short", TroubleKind.XID, Verdict.DRAIN, "it is failing", (), False, 5.0)
    world = gpu_world("node-3", health=HealthRules((short,)), took_s=20.0)
    told(world, "node-2", trouble("node-2", 64))
    go_on(world, 20.0)
    assert "it cannot be drained: it cannot end in the time allowed" in health(world, "node-2")
    assert places(world) == ["node-1", "node-3"]
    assert [each.attempt for each in world.control.attempts()] == ["a1"], "not even begun"


def test_a_drain_that_fails_is_followed_by_a_restore() -> None:
    world = gpu_world("node-3")
    told(world, "node-2", trouble("node-2", 64))
    for _ in range(60):
        serve(world)
        world.store()
        for order in [o for o in world.orders if o.phase is Phase.GPU_LOCK]:
            world.orders.remove(order)
            world.event(world.nodes[order.node].fail(order, "the driver does not answer"))
        world.answer_all()
        world.store()
        world.tick(1.0)
        if world.control.restores():
            break
    go_on(world, 20.0)
    assert "its drain has failed" in health(world, "node-2")
    assert places(world) == ["node-1", "node-3"]
    assert world.control.restores()[-1].snapshot == "a1"


# -- leaders ---------------------------------------------------------------------------------------


def test_a_new_leader_goes_on_with_what_is_told_anew(world: World) -> None:
    told(world, "node-2", trouble("node-2", 79))
    world.new_leader()
    told(world, "node-2", trouble("node-2", 79))
    go_on(world, 30.0)
    assert places(world) == ["node-1", "node-3"]


def test_a_new_leader_does_not_drain_what_an_operator_has_undrained(world: World) -> None:
    told(world, "node-2", trouble("node-2", 64))
    go_on(world, 20.0)
    world.new_leader()
    told(world, "node-2", trouble("node-2", 64, fresh=False))
    attempts = len(world.control.attempts())
    go_on(world, 10.0)
    assert len(world.control.attempts()) == attempts
