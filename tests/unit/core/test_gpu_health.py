"""Sick GPUs: the whole core over time, with nodes, a store, drains and recoveries."""

from __future__ import annotations

from dataclasses import replace

import pytest

from coordinator.core import events
from coordinator.core.drain_records import DrainState
from coordinator.core.health_records import TroubleKind
from coordinator.core.health_rules import HealthRule, HealthRules, Verdict
from coordinator.core.job_policy import JobPolicy, OnFailure, RecoveryState
from coordinator.core.model import AttemptState, GpuHeld, Phase, RestoreState
from tests.support.core_checks import answer_until
from tests.support.core_drains import drain, go_on, places, serve, state
from tests.support.core_gpus import (
    POLICY,
    gpu_node,
    gpu_world,
    health,
    story,
    told,
    trouble,
    uuid,
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


# -- suspect snapshots -----------------------------------------------------------------------------


def commit(world: World, name: str) -> str:
    world.checkpoint("llm", name)
    world.settle()
    return world.snapshots[name].suspect


def test_after_an_uncorrected_error_snapshots_are_suspect_until_the_reset() -> None:
    world = gpu_world(policy=LEAVE)
    told(world, "node-2", trouble("node-2", 48))
    why = commit(world, "a2")
    assert why == (
        "node-2: GPU 0 (GPU-node-2-0): Xid 48, a memory error that could not be corrected"
    )
    record = world.control.attempt("a2")
    assert record is not None
    assert "suspect" in record.reason
    told(world, "node-2")
    assert commit(world, "a3") == ""


def test_an_error_during_the_attempt_counts_up_to_its_commit() -> None:
    world = gpu_world(policy=LEAVE)
    world.checkpoint("llm", "a2")
    answer_until(world, Phase.PERSIST)
    told(world, "node-1", trouble("node-1", 0, kind=TroubleKind.ECC, count=3))
    world.settle()
    assert "memory errors that could not be corrected" in world.snapshots["a2"].suspect


def test_what_the_shim_wrote_counts_for_a_leader_that_was_told_nothing() -> None:
    world = gpu_world(policy=LEAVE)
    world.nodes["node-1"].troubles = (trouble("node-1", 95, fresh=False),)
    world.checkpoint("llm", "a2")
    answer_until(world, Phase.PERSIST)
    world.store()
    world.new_leader()
    world.settle()
    assert "Xid 95" in world.snapshots["a2"].suspect


@pytest.mark.parametrize("code", [79, 64, 13])
def test_other_trouble_makes_nothing_suspect(code: int) -> None:
    world = gpu_world(policy=LEAVE)
    told(world, "node-2", trouble("node-2", code))
    assert commit(world, "a2") == ""


def test_trouble_of_a_node_of_others_makes_nothing_suspect() -> None:
    world = gpu_world("node-3", policy=LEAVE)
    told(world, "node-3", trouble("node-3", 48))
    assert commit(world, "a2") == ""


def test_only_gpus_that_the_worker_used_count_where_that_is_known() -> None:
    world = gpu_world(policy=LEAVE)
    told(world, "node-2", trouble("node-2", 48, index=1))
    judge = world.control._standing.suspicion
    records = world.snapshots["a1"].workers
    mine = replace(records[1], gpu_held=(GpuHeld(uuid("node-2", 0), 1),))
    other = replace(records[1], gpu_held=(GpuHeld(uuid("node-2", 1), 1),))
    assert judge([mine]) == ""
    assert "GPU 1" in judge([other])
    assert "GPU 1" in judge([replace(other, gpu_held=())]), "it is not known which it used"
    assert judge([replace(other, gpu_pids=())]) == "", "it has no GPU state"


def test_a_recovery_takes_the_newest_snapshot_that_is_not_suspect(world: World) -> None:
    world.event(events.PolicyChanged(LEAVE))
    told(world, "node-2", trouble("node-2", 48))
    assert commit(world, "a2")
    world.event(events.PolicyChanged(POLICY))
    world.tick(2.0)
    world.lose("node-1")
    go_on(world, 30.0)
    assert world.control.restores()[-1].snapshot == "a1"


def test_a_drain_goes_on_from_the_last_good_snapshot_where_its_own_is_suspect(
    world: World,
) -> None:
    world.event(events.PolicyChanged(LEAVE))
    told(world, "node-2", trouble("node-2", 48))
    drain(world)
    go_on(world, 20.0)
    stopped = world.control.attempts()[-1]
    assert (stopped.stop, bool(world.snapshots[stopped.attempt].suspect)) == (True, True)
    assert places(world) == ["node-1", "node-3"]
    assert world.control.restores()[-1].snapshot == "a1"


def test_a_run_without_a_good_snapshot_goes_on_where_it_is() -> None:
    world = gpu_world("node-3")
    world.snapshots["a1"] = replace(world.snapshots["a1"], suspect="node-1: Xid 48")
    told(world, "node-2", trouble("node-2", 79))
    go_on(world, 150.0)
    assert places(world) == ["node-1", "node-2"], "it was not ended for want of a snapshot"
    assert world.control.recovery("llm").state is RecoveryState.WATCHING
    assert "it goes on where it is: no snapshot that can be relied on" in story(world)


def test_a_suspect_snapshot_that_is_named_is_restored_with_a_warning(world: World) -> None:
    world.event(events.PolicyChanged(LEAVE))
    told(world, "node-2", trouble("node-2", 48))
    commit(world, "a2")
    world.restore("llm", "r1", "a2")
    go_on(world)
    record = world.control.restore("r1")
    assert record is not None
    assert record.state is RestoreState.RUNNING
    assert "the snapshot is suspect: node-2: GPU 0" in record.reason


@pytest.mark.parametrize("heir", [False, True])
def test_what_a_run_saves_that_was_put_back_from_a_suspect_one_is_suspect(
    world: World, heir: bool
) -> None:
    """A drain without a good snapshot moves the run; its state is no better on healthy GPUs."""
    world.event(events.PolicyChanged(LEAVE))
    world.snapshots["a1"] = replace(world.snapshots["a1"], suspect="node-1: Xid 48")
    told(world, "node-2", trouble("node-2", 48))
    drain(world)
    go_on(world, 20.0)
    moved = world.control.attempts()[-1]
    assert places(world) == ["node-1", "node-3"]
    assert world.control.restores()[-1].snapshot == moved.attempt
    if heir:
        world.new_leader()
        world.settle()
    why = commit(world, "a5")
    assert why.startswith(f"goes on from {moved.attempt}: node-2: GPU 0")
    world.restore("llm", "r9", "a5")  # an operator's word
    go_on(world)
    assert commit(world, "a6") == ""
