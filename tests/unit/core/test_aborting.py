"""The checkpoint round, one trouble after another: what aborts, what is ignored, and the undo."""

from dataclasses import replace

import pytest

from coordinator.core import events
from coordinator.core.action import CLOCK_DRIFT
from coordinator.core.errors import IllegalEvent
from coordinator.core.model import AttemptState, Failure, Phase
from tests.support.core_checks import (
    BEFORE_CUT,
    failure,
    running,
    sent,
    snap,
    state,
    two_and_a_spare,
    until,
)
from tests.support.core_world import World

S = AttemptState


@pytest.fixture
def world() -> World:
    """Two nodes with one worker of two ranks each, and a spare."""
    return two_and_a_spare()


# -- what makes an attempt fail --------------------------------------------------------------------


@pytest.mark.parametrize("phase", [*BEFORE_CUT, Phase.PERSIST])
def test_a_lost_node_is_named_at_once_and_all_others_are_undone(world: World, phase: Phase) -> None:
    until(world, phase)
    world.lose("node-2", "its stream broke")
    assert (failure(world).node, failure(world).worker) == ("node-2", 1)
    assert "node-2 was lost (its stream broke)" in failure(world).what
    assert [(o.node, o.worker) for o in sent(world, Phase.UNDO)] == [("node-1", 0)]
    world.settle()
    assert state(world) is S.ABORTED
    assert "worker 1 on node-2 is out of reach" in world.last["a1"].reason
    assert running(world) or world.nodes["node-2"].workers[("llm", 1)].held_by == "a1"
    world.tick(1000)
    assert running(world), "its own timer lets the lost worker go"


@pytest.mark.parametrize("phase", [*BEFORE_CUT, Phase.PERSIST])
def test_a_failed_order_aborts_with_the_shims_own_words(world: World, phase: Phase) -> None:
    until(world, phase)
    order = sent(world, phase)[1]
    world.orders.remove(order)
    world.event(world.nodes["node-2"].fail(order, "criu said no", kind="DriverError"))
    found = failure(world)
    assert (found.kind, found.what, found.phase) == ("DriverError", "criu said no", phase)
    assert (found.job, found.worker, found.node) == ("llm", 1, "node-2")
    world.settle()
    assert state(world) is S.ABORTED
    assert running(world)


@pytest.mark.parametrize("phase", BEFORE_CUT)
def test_silence_is_named_with_rank_and_last_step(world: World, phase: Phase) -> None:
    until(world, phase)
    world.answer(sent(world, phase)[0])
    world.tick(200)
    found = failure(world)
    assert found.kind == "DeadlinePassed"
    assert (found.worker, found.node, found.phase) == (1, "node-2", phase)
    assert "worker 1 on node-2 (rank 2 last at step" in found.what
    world.settle()
    assert state(world) is S.ABORTED


def test_the_attempts_own_deadline_caps_every_phase(world: World) -> None:
    until(world, Phase.PARK, deadline_s=3.0)
    assert sent(world, Phase.PARK)[0].deadline_s == pytest.approx(3.0)
    world.tick(3.0)
    assert "the deadline of the whole action (3 s)" in failure(world).what


@pytest.mark.parametrize("phase", BEFORE_CUT)
def test_a_worker_that_exits_aborts(world: World, phase: Phase) -> None:
    until(world, phase)
    world.event(events.WorkerExited("node-2", "llm", 1, 0, -9, "Killed"))
    assert "worker 1 on node-2 exited with signal 9" in failure(world).what
    assert failure(world).details == ("Killed",)


@pytest.mark.parametrize("phase", BEFORE_CUT)
def test_an_operator_may_abort_until_committing_begins(world: World, phase: Phase) -> None:
    until(world, phase)
    world.event(events.AbortRequested("a1", "wrong job"))
    assert "wrong job" in failure(world).what
    world.settle()
    assert state(world) is S.ABORTED


def test_abort_is_too_late_once_committing(world: World) -> None:
    until(world, Phase.PERSIST)
    world.answer_all()
    assert state(world) is S.COMMITTING
    world.event(events.AbortRequested("a1", "too late"))
    world.lose("node-1")
    assert state(world) is S.COMMITTING
    world.settle()
    assert state(world) is S.COMMITTED


def test_a_refused_commit_is_undone(world: World) -> None:
    until(world, Phase.PERSIST)
    world.answer_all()
    refused = Failure("StoreError", "the attempt was changed by somebody else")
    world.writes.clear()
    world.event(events.CommitRefused("a1", refused))
    assert len(sent(world, Phase.UNDO)) == 2
    world.settle()
    assert state(world) is S.ABORTED
    assert failure(world).what == refused.what


@pytest.mark.parametrize("definite", [True, False])
def test_images_of_a_commit_that_may_have_happened_are_kept(world: World, definite: bool) -> None:
    until(world, Phase.PERSIST)
    world.answer_all()
    world.writes.clear()
    world.lose("node-2")
    unsure = Failure("StoreError", "nobody knows", definite=definite)
    world.event(events.CommitRefused("a1", unsure))
    assert [(o.node, o.keep) for o in sent(world, Phase.UNDO)] == [("node-1", not definite)]
    world.settle()
    assert state(world) is S.ABORTED
    world.attach("node-2")
    assert [(o.node, o.keep) for o in sent(world, Phase.UNDO)] == [("node-2", not definite)]


def test_a_silent_store_keeps_the_commit_open_and_says_so(world: World) -> None:
    until(world, Phase.PERSIST)
    world.answer_all()
    write = world.writes
    world.writes = []
    world.tick(25)
    assert state(world) is S.COMMITTING
    assert "silent about the commit for 20.0 s" in world.control.attempts()[0].reason
    world.writes = write
    world.settle()
    assert state(world) is S.COMMITTED


def test_an_attempt_that_cannot_be_recorded_touches_nobody(world: World) -> None:
    world.checkpoint("llm", "a1")
    world.writes.clear()
    world.event(events.StoreRefused("a1", Failure("StoreError", "etcd is out of reach")))
    assert state(world) is S.ABORTED
    assert not world.orders
    assert world.last["a1"].failure is not None


@pytest.mark.parametrize("fast", [0.0, CLOCK_DRIFT])
@pytest.mark.parametrize("phase", BEFORE_CUT)
def test_nothing_follows_once_a_hold_could_have_run_out(
    world: World, phase: Phase, fast: float
) -> None:
    """Also where the shim's clock is faster: its timer ends the earlier for it."""
    until(world, phase)
    orders = sent(world, phase)
    answers = [world.nodes[o.node].carry_out(o) for o in orders]
    world.orders.clear()
    # the coordinator itself stood still: no TimePassed was handed in
    world.now += orders[0].hold_s / (1.0 + fast)
    for answer in answers:
        world.event(answer)
    assert state(world) is S.ABORTING
    assert "could have run out" in failure(world).what
    assert {o.phase for o in world.orders} == {Phase.UNDO}


# -- what is ignored, and what cannot be -----------------------------------------------------------


@pytest.mark.parametrize("phase", [*BEFORE_CUT, Phase.PERSIST])
def test_duplicates_foreign_epochs_and_strangers_change_nothing(world: World, phase: Phase) -> None:
    until(world, phase)
    order = sent(world, phase)[0]
    answer = world.answer(order)
    before = snap(world)
    foreign = (
        answer,
        replace(answer, epoch=99),
        replace(answer, action="a0"),
        replace(answer, job="other"),
        replace(answer, node="node-3"),
        replace(answer, worker=7),
    )
    for event in foreign:
        assert world.event(event) == []
        assert world.control.story()[-1].ignored
        assert world.control.story()[-1].reason
    assert snap(world) == before


@pytest.mark.parametrize("phase", [*BEFORE_CUT, Phase.PERSIST])
def test_nobody_answers_for_a_worker_on_another_node(world: World, phase: Phase) -> None:
    until(world, phase)
    order = sent(world, phase)[0]
    answer = world.nodes[order.node].carry_out(order)
    before = snap(world)
    for node in ("node-2", "node-3"):
        assert world.event(replace(answer, node=node)) == []
        assert f"is not on {node}" in world.control.story()[-1].reason
    assert snap(world) == before


def test_an_answer_to_an_order_that_was_never_given_is_illegal(world: World) -> None:
    until(world, Phase.HOLD)
    before = snap(world)
    place = (1, "node-1", "llm", 0, "a1")
    ranks = world.nodes["node-1"].workers[("llm", 0)].ranks
    for event in (events.Parked(*place, ranks), events.Resumed(*place, 1), events.Stopped(*place)):
        with pytest.raises(IllegalEvent, match="HOLDING"):
            world.event(event)
    with pytest.raises(IllegalEvent):
        world.event(events.SnapshotCommitted("a1"))
    assert snap(world) == before


def test_what_comes_after_the_end_is_ignored(world: World) -> None:
    until(world, Phase.PARK)
    late = [world.nodes[o.node].carry_out(o) for o in sent(world, Phase.PARK)]
    world.event(events.AbortRequested("a1", "enough"))
    assert world.event(late[0]) == [], "while it is undone"
    world.settle()
    assert world.event(late[1]) == [], "when it has ended"
    assert "has ended as ABORTED" in world.control.story("a1")[-1].reason


# -- undo ------------------------------------------------------------------------------------------


def test_a_node_lost_while_undoing_is_not_waited_for(world: World) -> None:
    until(world, Phase.DUMP)
    world.event(events.AbortRequested("a1", "enough"))
    world.lose("node-2")
    assert state(world) is S.ABORTING
    world.answer(sent(world, Phase.UNDO)[0])
    assert state(world) is S.ABORTED
    assert "worker 1 on node-2 was lost and lets go by its own timer" in world.last["a1"].reason


def test_a_node_that_returns_while_undoing_is_told_too(world: World) -> None:
    until(world, Phase.DUMP)
    world.lose("node-2")
    world.attach("node-2")
    assert {o.node for o in sent(world, Phase.UNDO)} == {"node-1", "node-2"}
    world.settle()
    assert running(world)


def test_a_held_worker_that_returns_after_the_end_is_told_too(world: World) -> None:
    until(world, Phase.DUMP)
    world.lose("node-2")
    world.settle()
    assert state(world) is S.ABORTED
    world.attach("node-2", new_session=True)
    assert [o.node for o in sent(world, Phase.UNDO)] == ["node-2"]
    world.settle()
    assert running(world)


def test_a_stream_that_was_opened_anew_aborts(world: World) -> None:
    until(world, Phase.DUMP)
    world.attach("node-2")
    assert "its stream was opened anew" in failure(world).what


def test_who_does_not_undo_is_named_and_left(world: World) -> None:
    until(world, Phase.DUMP)
    world.event(events.AbortRequested("a1", "enough"))
    world.answer(sent(world, Phase.UNDO)[0])
    world.orders.clear()
    world.tick(world.policy.undo_s)
    assert state(world) is S.ABORTED
    assert "worker 1 on node-2 has not said within 30.0 s that it was undone" in (
        world.last["a1"].reason
    )


def test_a_shim_that_let_go_by_itself_aborts(world: World) -> None:
    until(world, Phase.DUMP)
    world.event(events.Undone(1, "node-2", "llm", 1, "a1", 5000))
    assert "let go by its own timer after 5000 ms" in failure(world).what


# -- a new leader ----------------------------------------------------------------------------------


@pytest.mark.parametrize("phase", BEFORE_CUT)
def test_a_new_leader_undoes_what_it_finds(world: World, phase: Phase) -> None:
    until(world, phase)
    world.store()
    world.new_leader()
    assert {(o.node, o.phase) for o in world.orders} == {
        ("node-1", Phase.UNDO),
        ("node-2", Phase.UNDO),
    }
    assert state(world) is S.ABORTING
    world.settle()
    assert state(world) is S.ABORTED
    assert running(world)
    assert "the leader of epoch 1 ended while a1 was" in failure(world).what
    world.checkpoint("llm", "a2")
    world.settle()
    assert state(world, "a2") is S.COMMITTED


def test_a_new_leader_waits_for_nodes_only_so_long(world: World) -> None:
    until(world, Phase.DUMP)
    for node in world.nodes.values():
        node.attached = False
    world.new_leader()
    assert state(world) is S.ABORTING
    world.tick(world.policy.adopt_s)
    assert state(world) is S.ABORTED


@pytest.mark.parametrize("went_through", [True, False])
def test_a_commit_of_an_heir_is_settled_by_the_store(world: World, went_through: bool) -> None:
    until(world, Phase.PERSIST)
    world.store()
    world.new_leader()
    world.answer_all()
    world.writes.clear()
    assert state(world) is S.COMMITTING
    if went_through:
        world.event(events.SnapshotCommitted("a1"))
        assert state(world) is S.COMMITTED
    else:
        world.event(events.CommitRefused("a1", Failure("StoreError", "it is not there")))
        assert state(world) is S.ABORTING
        world.tick(world.policy.adopt_s)
        assert state(world) is S.ABORTED


def test_for_how_long_the_ranks_were_held_is_what_a_given_up_attempt_has_cost() -> None:
    world = two_and_a_spare()
    world.checkpoint("llm", "a1")
    until(world, Phase.DUMP)
    world.event(events.AbortRequested("a1", "not now"))
    world.settle()
    assert world.attempts["a1"].state is AttemptState.ABORTED
    assert world.attempts["a1"].pause_ms == 600
