"""Suspect snapshots: what makes one, and who takes it all the same."""

from __future__ import annotations

from dataclasses import replace

import pytest

from coordinator.core import events
from coordinator.core.health_records import TroubleKind
from coordinator.core.job_policy import JobPolicy, OnFailure, RecoveryState
from coordinator.core.model import GpuHeld, Phase, RestoreState
from tests.support.core_checks import answer_until
from tests.support.core_drains import drain, go_on, places
from tests.support.core_gpus import (
    POLICY,
    gpu_world,
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
