"""The restore round: forward, every trouble, and one incarnation at a time."""

from dataclasses import replace

import pytest

from coordinator.core import commands, events
from coordinator.core.action import Member
from coordinator.core.errors import IllegalEvent
from coordinator.core.model import (
    AddressMove,
    Cut,
    Endpoint,
    Failure,
    Phase,
    RestoreState,
)
from coordinator.core.restore import TRANSITIONS
from coordinator.core.returning import Restore
from coordinator.core.table import step
from tests.support.core_checks import sent
from tests.support.core_restores import failure, half_lost_world, incarnations, state, until
from tests.support.core_shims import Node, Worker, facts
from tests.support.core_world import World

S = RestoreState
PHASES = (Phase.FETCH, Phase.CLEAR, Phase.RESTORE, Phase.RELEASE)


@pytest.fixture
def world() -> World:
    return half_lost_world()


def test_the_lost_worker_lands_on_the_spare_and_the_other_stays(world: World) -> None:
    world.restore("llm", "r1", "a1")
    world.settle()
    assert state(world) is S.RUNNING
    record = world.restores["r1"]
    assert [(p.worker, p.to_node) for p in record.plan.placements] == [(0, "node-1"), (1, "node-3")]
    assert record.plan.addresses == (AddressMove("10.0.0.2", "10.0.0.3"),)
    assert record.incarnation == 2
    assert incarnations(world) == {"node-1": [2], "node-2": [1], "node-3": [2]}
    view = world.control.jobs()[0]
    assert (view.state, view.nodes, view.step) == ("running", ("node-1", "node-3"), 12)


def test_a_frozen_job_runs_again_at_no_step(world: World) -> None:
    world.attach("node-2")
    world.checkpoint("llm", "a2", cut=Cut.FREEZE)
    world.settle()
    world.restore("llm", "r1", "a2")
    world.settle()
    assert world.restores["r1"].reason == "snapshot a2 runs again"


def test_a_restored_job_can_be_checkpointed_at_once(world: World) -> None:
    world.restore("llm", "r1", "a1")
    world.settle()
    world.checkpoint("llm", "a2")
    world.settle()
    assert world.snapshots["a2"].incarnation == 2
    assert world.snapshots["a2"].step == 13


def test_every_order_carries_what_the_shim_needs(world: World) -> None:
    seen: list[commands.SendOrder] = []
    world.watchers.append(lambda c: seen.append(c) if isinstance(c, commands.SendOrder) else None)
    world.restore("llm", "r1", "a1")
    world.settle()
    phases = (*PHASES[:-1], Phase.OPEN, Phase.RELEASE)
    assert [o.phase for o in seen] == [p for p in phases for _ in range(2)]
    for order in seen:
        assert order.record is not None
        assert order.record.worker == order.worker
        assert (order.incarnation, order.workers, order.world_size) == (2, 2, 4)
        assert order.addresses == (AddressMove("10.0.0.2", "10.0.0.3"),)
        assert (order.hold_s > 0) is (order.phase in (Phase.CLEAR, Phase.RESTORE, Phase.OPEN))
    moved = next(o for o in seen if o.phase is Phase.CLEAR and o.worker == 1)
    assert moved.connections == (
        Endpoint("10.0.0.3", 5001, "10.0.0.1", 6000),
        Endpoint("10.0.0.3", 6001, "10.0.0.1", 5000),
    )


def test_nothing_is_touched_before_the_restore_is_admitted(world: World) -> None:
    decided = world.restore("llm", "r1", "a1")
    assert [type(c) for c in decided] == [commands.AdmitRestore, commands.Announce]
    assert isinstance(decided[0], commands.AdmitRestore)
    assert decided[0].old_incarnation == 1
    assert not world.orders


def test_two_restores_at_once_and_a_checkpoint_meanwhile_are_refused(world: World) -> None:
    until(world, Phase.FETCH)
    world.restore("llm", "r2", "a1")
    world.checkpoint("llm", "a2")
    for name in ("r2", "a2"):
        assert world.refused[name].failure.kind == "Busy"
        assert "r1" in world.refused[name].failure.what


def test_a_restore_that_the_store_refuses_touches_nobody(world: World) -> None:
    world.restore("llm", "r1", "a1")
    world.writes.clear()
    world.event(events.StoreRefused("r1", Failure("Busy", "another restore won")))
    assert state(world) is S.FAILED
    assert failure(world).what == "another restore won"
    assert not world.orders
    assert world.control.jobs()[0].job.incarnation == 1


def test_no_node_that_fits_refuses_with_every_reason(world: World) -> None:
    world.nodes["node-3"].facts = facts("node-3", criu_version="", memory_free_bytes=1)
    world.attach("node-3")
    world.restore("llm", "r1", "a1")
    refused = world.refused["r1"].failure
    assert refused.kind == "NoPlan"
    assert "no node for worker 1" in refused.what
    reasons = dict(line.split(": ", 1) for line in refused.details)
    assert "no usable CRIU" in reasons["node-3, worker 1"]
    assert "memory" in reasons["node-3, worker 1"]
    assert "it was lost: power cut" in reasons["node-2, worker 1"]
    assert "node-1, worker 1" in reasons
    assert world.control.restore("r1") is None


@pytest.mark.parametrize("phase", PHASES)
def test_a_node_lost_half_way_fails_and_the_next_plan_avoids_it(world: World, phase: Phase) -> None:
    until(world, phase)
    world.lose("node-3", "kernel panic")
    assert (failure(world).node, failure(world).worker) == ("node-3", 1)
    undo = sent(world, Phase.UNDO)
    assert [(o.node, o.kill, o.incarnation) for o in undo] == [("node-1", True, 2)]
    world.settle()
    assert state(world) is S.FAILED
    assert world.restores["r1"].state is S.FAILED
    assert world.snapshots["a1"].step == 12
    assert world.control.jobs()[0].job.incarnation == 2
    world.node(Node(facts("node-4")))
    world.restore("llm", "r2", "a1")
    world.settle()
    assert state(world, "r2") is S.RUNNING
    assert world.restores["r2"].incarnation == 3
    assert incarnations(world)["node-4"] == [3]


@pytest.mark.parametrize("phase", PHASES)
def test_a_failed_order_kills_what_was_restored(world: World, phase: Phase) -> None:
    until(world, phase)
    order = sent(world, phase)[0]
    world.orders.remove(order)
    world.event(world.nodes[order.node].fail(order, "criu said no"))
    assert failure(world).what == "criu said no"
    world.settle()
    assert state(world) is S.FAILED
    left = {"node-1": [2] if phase is Phase.FETCH else [], "node-2": [1], "node-3": []}
    assert incarnations(world) == left


@pytest.mark.parametrize("phase", PHASES)
def test_silence_is_named(world: World, phase: Phase) -> None:
    until(world, phase)
    world.answer(sent(world, phase)[0])
    world.tick(700)
    assert failure(world).kind == "DeadlinePassed"
    assert "worker 1 on node-3" in failure(world).what
    world.settle()
    assert state(world) is S.FAILED


def test_a_restored_worker_that_dies_fails_the_restore(world: World) -> None:
    until(world, Phase.RELEASE)
    world.event(events.WorkerExited("node-3", "llm", 1, 2, 1, "Traceback"))
    assert "restored worker 1 on node-3 exited with code 1" in failure(world).what


def test_an_old_worker_may_die_whenever_it_likes(world: World) -> None:
    for phase in (Phase.FETCH, Phase.RELEASE):
        until(world, phase) if phase is Phase.FETCH else world.settle()
        world.event(events.WorkerExited("node-1", "llm", 0, 1, -9, ""))
    assert state(world) is S.RUNNING


def test_an_operator_may_abort(world: World) -> None:
    until(world, Phase.RESTORE)
    world.event(events.AbortRequested("r1", "wrong snapshot"))
    world.settle()
    assert state(world) is S.FAILED
    assert "wrong snapshot" in failure(world).what


# -- old workers -----------------------------------------------------------------------------------


def test_an_old_worker_elsewhere_is_fenced_and_awaited(world: World) -> None:
    world.nodes["node-1"].facts = facts("node-1", memory_free_bytes=0, staging_free_bytes=0)
    world.attach("node-1")
    world.node(Node(facts("node-4")))
    fences: list[commands.FenceWorkers] = []
    world.watchers.append(
        lambda c: fences.append(c) if isinstance(c, commands.FenceWorkers) else None
    )
    until(world, Phase.CLEAR)
    assert [(f.node, [s.worker for s in f.workers]) for f in fences] == [("node-1", [0])]
    world.answer_all(Phase.CLEAR)
    assert state(world) is S.CLEARING, "the old worker has not been seen to end"
    world.report("node-1")
    assert state(world) is S.RESTORING
    world.settle()
    assert state(world) is S.RUNNING


def test_an_old_worker_that_will_not_die_fails_the_restore_by_name(world: World) -> None:
    world.nodes["node-1"].facts = facts("node-1", staging_free_bytes=0)
    world.attach("node-1")
    world.node(Node(facts("node-4")))
    until(world, Phase.CLEAR)
    world.answer_all(Phase.CLEAR)
    world.tick(world.policy.clear_s)
    assert "old worker 0 on node-1" in failure(world).what


def test_a_lost_node_that_returns_is_fenced(world: World) -> None:
    world.restore("llm", "r1", "a1")
    world.settle()
    node = world.nodes["node-2"]
    node.attached = True
    decided = world.event(node.hello())
    fence = next(c for c in decided if isinstance(c, commands.FenceWorkers))
    assert (fence.node, [s.worker for s in fence.workers]) == ("node-2", [1])
    assert "incarnation 1" in fence.reason
    assert world.control.jobs()[0].nodes == ("node-1", "node-3")


def test_what_a_failed_restore_left_on_a_lost_node_is_killed_on_its_return(world: World) -> None:
    until(world, Phase.RELEASE)
    world.lose("node-3")
    world.settle()
    assert state(world) is S.FAILED
    world.attach("node-3")
    assert not world.nodes["node-3"].workers


# -- a new leader, and the table itself ------------------------------------------------------------


@pytest.mark.parametrize("phase", PHASES[:-1])
def test_a_new_leader_clears_away_what_it_finds(world: World, phase: Phase) -> None:
    until(world, phase)
    world.store()
    world.new_leader()
    undo = sent(world, Phase.UNDO)
    assert {(o.node, o.kill) for o in undo} == {("node-1", True), ("node-3", True)}
    world.settle()
    assert state(world) is S.FAILED
    left = {"node-1": [2] if phase is Phase.FETCH else [], "node-2": [1], "node-3": []}
    assert incarnations(world) == left
    world.restore("llm", "r2", "a1")
    world.settle()
    assert state(world, "r2") is S.RUNNING


def test_nothing_is_cleared_before_that_is_recorded(world: World) -> None:
    world.restore("llm", "r1", "a1")
    world.store()
    world.answer_all(Phase.FETCH)
    assert state(world) is S.CLEARING
    assert not world.orders
    world.writes.clear()
    world.event(events.StoreRefused("r1", Failure("StoreError", "etcd said no")))
    world.settle()
    assert state(world) is S.FAILED
    assert failure(world).what == "etcd said no"
    assert incarnations(world)["node-1"] == [2], "the old worker is the job again"
    assert world.control.jobs()[0].job.incarnation == 2


def test_devices_have_rounds_of_their_own_between_all_back_and_release(world: World) -> None:
    snapshot = world.snapshots["a1"]
    r = Restore(
        id="r9",
        job="llm",
        epoch=1,
        incarnation=1,
        policy=world.policy,
        started=0.0,
        deadline_s=100.0,
        unix_s=0.0,
        members={0: Member(0, "node-1"), 1: Member(1, "node-3")},
        state=S.ADMITTING,
        reason="",
        snapshot=snapshot,
        snapshot_id="a1",
        gpu=True,
        records={w.worker: w for w in snapshot.workers},
        sure=True,
    )
    r.begin(0.0)
    step(TRANSITIONS, r, events.RestoreAdmitted("r9"), 1.0)
    kinds = (
        events.Fetched,
        events.Cleared,
        lambda *at: events.Restored(*at, 1),
        events.GpuRestored,
        events.GpuUnlocked,
        events.Opened,
        events.Released,
    )
    states = []
    for kind in kinds:
        for member in list(r.members.values()):
            step(TRANSITIONS, r, kind(1, member.node, "llm", member.worker, "r9"), 2.0)
        if r.state is S.CLEARING:
            step(TRANSITIONS, r, events.RestoreStored("r9", "CLEARING"), 2.0)
        if r.state is S.RELEASING:
            step(TRANSITIONS, r, events.RestoreStored("r9", "RELEASING"), 2.0)
        states.append(r.state)
    assert states == [
        S.CLEARING,
        S.RESTORING,
        S.GPU_RESTORING,
        S.GPU_UNLOCKING,
        S.RELEASING,
        S.RELEASING,
        S.RUNNING,
    ]


def test_an_answer_ahead_of_its_order_is_illegal(world: World) -> None:
    until(world, Phase.FETCH)
    with pytest.raises(IllegalEvent, match="FETCHING"):
        world.event(events.Restored(1, "node-1", "llm", 0, "r1", 1))
    assert state(world) is S.FETCHING


def test_a_late_admission_still_raises_the_incarnation(world: World) -> None:
    world.restore("llm", "r1", "a1")
    world.writes.clear()
    world.tick(world.policy.admit_s)
    assert state(world) is S.FAILED
    world.event(events.RestoreAdmitted("r1"))
    assert world.control.jobs()[0].job.incarnation == 2
    assert incarnations(world)["node-1"] == [2], "nothing was cleared: it goes on as the job"


def test_a_late_admission_gives_up_the_checkpoint_that_has_begun_since(world: World) -> None:
    world.attach("node-2")
    world.restore("llm", "r1", "a1")
    late, world.writes = world.writes, []
    world.tick(world.policy.admit_s)
    world.writes.clear()
    world.checkpoint("llm", "a2")
    world.store()
    assert {o.phase for o in world.orders} == {Phase.HOLD}
    world.event(world.apply(late[0]))
    assert {o.phase for o in world.orders} >= {Phase.UNDO}
    world.settle()
    attempt = world.attempts["a2"]
    assert (attempt.state, "r1 was recorded late" in attempt.reason) == ("ABORTED", True)
    world.checkpoint("llm", "a3")
    world.settle()
    assert world.snapshots["a3"].incarnation == 2


def test_a_snapshot_of_another_job_is_refused(world: World) -> None:
    foreign = replace(world.snapshots["a1"], job="gpt")
    world.event(events.RestoreRequested("llm", "r1", foreign, 0.0, 0.0))
    assert world.refused["r1"].failure.kind == "BadRequest"


def test_a_second_worker_of_one_number_is_fenced(world: World) -> None:
    twin = Worker("llm", 0, 2, 4, {0: 1, 1: 1})
    world.nodes["node-3"].workers[("llm", 0)] = twin
    world.report("node-3")
    assert not world.nodes["node-3"].workers
    assert "already runs on node-1" in world.control.story()[-1].reason
