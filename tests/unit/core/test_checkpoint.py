"""The checkpoint round, one trouble after another."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from coordinator.core import commands, events
from coordinator.core.errors import IllegalEvent
from coordinator.core.model import AttemptState, Cut, Failure, Finding, Phase, RankState, Severity
from tests.support.core_shims import Node, facts
from tests.support.core_world import World

S = AttemptState
BEFORE_CUT = (Phase.HOLD, Phase.PARK, Phase.DUMP)


@pytest.fixture
def world() -> World:
    """Two nodes with one worker of two ranks each, and a spare."""
    made = World()
    for name in ("node-1", "node-2", "node-3"):
        made.node(Node(facts(name)))
    made.start("llm", ["node-1", "node-2"], ranks=2)
    return made


def until(world: World, phase: Phase, attempt: str = "a1", **how: object) -> None:
    """Run an attempt until the orders of a phase are out and nobody has answered them."""
    world.checkpoint("llm", attempt, **how)  # type: ignore[arg-type]
    for _ in range(10):
        if any(o.phase is phase for o in world.orders):
            return
        world.store()
        if not any(o.phase is phase for o in world.orders):
            world.answer_all()
    raise AssertionError(f"{phase} never came")


def state(world: World, attempt: str = "a1") -> AttemptState:
    record = world.control.attempt(attempt)
    assert record is not None
    return record.state


def failure(world: World, attempt: str = "a1") -> Failure:
    record = world.control.attempt(attempt)
    assert record is not None
    assert record.failure is not None
    return record.failure


def sent(world: World, phase: Phase) -> list[commands.SendOrder]:
    return [o for o in world.orders if o.phase is phase]


def running(world: World) -> bool:
    workers = [w for n in world.nodes.values() for w in n.workers.values()]
    return all(w.held_by == "" and w.state == "running" for w in workers)


# -- the way through -------------------------------------------------------------------------------


def test_all_ranks_are_saved_at_one_step_past_the_furthest(world: World) -> None:
    world.nodes["node-2"].workers[("llm", 1)].boundaries = {2: 150, 3: 148}
    world.checkpoint("llm", "a1")
    world.settle()
    snapshot = world.snapshots["a1"]
    assert state(world) is S.COMMITTED
    assert snapshot.step == 151
    assert [r.boundary for w in snapshot.workers for r in w.ranks] == [151] * 4
    assert sorted(r.rank for w in snapshot.workers for r in w.ranks) == [0, 1, 2, 3]
    assert world.attempts["a1"].pause_ms == 700
    assert [t.phase for t in world.attempts["a1"].timings][:4] == ["ADMIT", "HOLD", "PARK", "DUMP"]
    assert world.control.jobs()[0].job.latest == "a1"
    assert running(world)


def test_nothing_is_held_before_the_attempt_is_recorded(world: World) -> None:
    decided = world.checkpoint("llm", "a1")
    assert not world.orders
    assert [type(c) for c in decided] == [commands.PutAttempt, commands.Announce]
    world.store()
    assert [o.phase for o in world.orders] == [Phase.HOLD, Phase.HOLD]


def test_resume_goes_out_at_the_cut_and_waits_for_no_store(world: World) -> None:
    until(world, Phase.DUMP)
    world.answer_all(Phase.DUMP)
    phases = [o.phase for o in world.orders]
    assert phases == [Phase.RESUME, Phase.RESUME, Phase.PERSIST, Phase.PERSIST]
    assert any(isinstance(w, commands.PutAttempt) for w in world.writes)
    assert not world.snapshots


def test_dead_man_timers_outlive_their_phases(world: World) -> None:
    seen: list[commands.SendOrder] = []
    world.watchers.append(lambda c: seen.append(c) if isinstance(c, commands.SendOrder) else None)
    world.checkpoint("llm", "a1")
    world.settle()
    for order in seen:
        holds = order.phase in BEFORE_CUT
        assert order.hold_s == (order.deadline_s + world.policy.margin_s if holds else 0.0)


def test_stop_persists_before_anything_ends_and_never_resumes(world: World) -> None:
    until(world, Phase.PERSIST, stop=True)
    assert not sent(world, Phase.RESUME)
    assert all(o.hold_s > o.deadline_s for o in sent(world, Phase.PERSIST))
    world.answer_all(Phase.PERSIST)
    assert not sent(world, Phase.STOP), "not before the commit"
    world.store()
    assert state(world) is S.STOPPING
    world.settle()
    assert state(world) is S.COMMITTED
    assert {w.state for n in world.nodes.values() for w in n.workers.values()} == {"exited"}


def test_freeze_skips_hold_and_park(world: World) -> None:
    until(world, Phase.DUMP, cut=Cut.FREEZE)
    assert [t.phase for t in world.control.attempts()[0].timings] == [Phase.ADMIT]
    world.settle()
    snapshot = world.snapshots["a1"]
    assert (snapshot.cut, snapshot.step) == (Cut.FREEZE, 11)


def test_devices_are_locked_and_saved_where_there_are_any(world: World) -> None:
    gpu = Finding(Severity.WARN, "gpu", "it has a GPU")
    world.nodes["node-1"].workers[("llm", 0)].findings = (gpu,)
    world.report("node-1")
    until(world, Phase.GPU_LOCK)
    world.answer_all(Phase.GPU_LOCK)
    assert state(world) is S.SAVING
    world.settle()
    assert state(world) is S.COMMITTED


# -- what is refused at once -----------------------------------------------------------------------


def test_a_second_checkpoint_is_refused_with_the_id_of_the_first(world: World) -> None:
    until(world, Phase.HOLD)
    world.checkpoint("llm", "a2")
    refused = world.refused["a2"].failure
    assert refused.kind == "Busy"
    assert "a1" in refused.what
    assert world.control.attempt("a2") is None


def test_an_unknown_job_and_a_missing_worker_are_named(world: World) -> None:
    world.checkpoint("gpt", "a1")
    assert world.refused["a1"].failure.kind == "NotFound"
    world.lose("node-2", "cable pulled")
    world.checkpoint("llm", "a2")
    refused = world.refused["a2"].failure
    assert refused.kind == "NotReady"
    assert "worker 1 was on node-2, which is lost: cable pulled" in refused.what


@pytest.mark.parametrize(
    ("finding", "cut", "refused"),
    [
        (Finding(Severity.REFUSE, "io_uring", "it has an io_uring"), Cut.STEP, True),
        (Finding(Severity.WARN, "pipe", "a pipe leaves the tree"), Cut.STEP, False),
        (Finding(Severity.WARN, "nccl", "NCCL is loaded"), Cut.FREEZE, True),
        (Finding(Severity.WARN, "nccl", "NCCL is loaded"), Cut.STEP, False),
        (Finding(Severity.REFUSE, "hook_missing", "no hook"), Cut.FREEZE, False),
        (Finding(Severity.REFUSE, "hook_missing", "no hook"), Cut.STEP, True),
    ],
)
def test_findings_refuse_by_severity_and_by_cut(
    world: World, finding: Finding, cut: Cut, refused: bool
) -> None:
    world.nodes["node-2"].workers[("llm", 1)].findings = (finding,)
    world.report("node-2")
    world.checkpoint("llm", "a1", cut=cut)
    assert ("a1" in world.refused) is refused
    if refused:
        assert finding.text in world.refused["a1"].failure.what
        assert (world.refused["a1"].failure.worker, world.refused["a1"].failure.node) == (
            1,
            "node-2",
        )


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


def test_no_cut_once_a_hold_could_have_run_out(world: World) -> None:
    until(world, Phase.DUMP)
    orders = sent(world, Phase.DUMP)
    answers = [world.nodes[o.node].carry_out(o) for o in orders]
    world.orders.clear()
    world.now += orders[0].hold_s  # the coordinator itself stood still: no TimePassed was handed in
    for answer in answers:
        world.event(answer)
    assert state(world) is S.ABORTING
    assert "could have run out" in failure(world).what
    assert not sent(world, Phase.PERSIST)


# -- what the ranks say ----------------------------------------------------------------------------


def change_held(world: World, change: Callable[[events.Held], events.Held]) -> None:
    until(world, Phase.HOLD)
    for order in sent(world, Phase.HOLD):
        answer = world.nodes[order.node].carry_out(order)
        assert isinstance(answer, events.Held)
        world.orders.remove(order)
        world.event(change(answer) if order.worker == 1 else answer)


@pytest.mark.parametrize(
    ("ranks", "words", "rank"),
    [
        (
            (RankState(2, 0, 1, 10), RankState(3, 1, 2, -1)),
            "rank 3 of worker 1 on node-2 has not",
            3,
        ),
        ((RankState(2, 0, 1, 10),), "nobody answered for rank 3", 3),
        ((RankState(2, 0, 1, 10), RankState(1, 1, 2, 10)), "rank 1 is claimed by worker 0", 1),
        ((), "worker 1 on node-2 has no rank that loaded the hook", -1),
    ],
)
def test_ranks_that_do_not_add_up_are_named(
    world: World, ranks: tuple[RankState, ...], words: str, rank: int
) -> None:
    change_held(world, lambda held: replace(held, ranks=ranks))
    assert words in failure(world).what
    assert (failure(world).kind, failure(world).rank) == ("NotReady", rank)
    assert len(sent(world, Phase.UNDO)) == 2


def test_a_rank_that_is_not_at_the_target_aborts(world: World) -> None:
    until(world, Phase.PARK)
    order = sent(world, Phase.PARK)[0]
    answer = world.nodes[order.node].carry_out(order)
    assert isinstance(answer, events.Parked)
    astray = (answer.ranks[0], replace(answer.ranks[1], boundary=order.target + 1))
    world.event(replace(answer, ranks=astray))
    assert "rank 1 at step 13" in failure(world).what


def test_a_dump_of_another_step_aborts(world: World) -> None:
    until(world, Phase.DUMP)
    order = sent(world, Phase.DUMP)[0]
    answer = world.nodes[order.node].carry_out(order)
    assert isinstance(answer, events.Dumped)
    moved = tuple(replace(r, boundary=r.boundary + 1) for r in answer.record.ranks)
    world.event(replace(answer, record=replace(answer.record, ranks=moved)))
    assert state(world) is S.ABORTING
    assert failure(world).phase == Phase.DUMP


def test_a_persisted_worker_must_name_its_manifest(world: World) -> None:
    until(world, Phase.PERSIST)
    order = sent(world, Phase.PERSIST)[0]
    answer = world.nodes[order.node].carry_out(order)
    assert isinstance(answer, events.Persisted)
    world.event(replace(answer, record=replace(answer.record, manifest_digest="")))
    assert "names no manifest" in failure(world).what


# -- after the cut ---------------------------------------------------------------------------------


def test_a_node_lost_after_it_was_stored_does_not_matter(world: World) -> None:
    until(world, Phase.PERSIST)
    order = next(o for o in sent(world, Phase.PERSIST) if o.node == "node-2")
    world.answer(order)
    world.lose("node-2")
    assert state(world) is S.PERSISTING
    world.settle()
    assert state(world) is S.COMMITTED
    assert "node-2 was lost after worker 1 was stored" in world.last["a1"].reason


def test_a_worker_that_does_not_resume_does_not_cost_the_snapshot(world: World) -> None:
    until(world, Phase.PERSIST)
    order = next(o for o in sent(world, Phase.RESUME) if o.node == "node-2")
    world.orders.remove(order)
    world.event(world.nodes["node-2"].fail(order, "SIGCONT failed"))
    world.settle()
    assert state(world) is S.COMMITTED
    assert "worker 1 on node-2 could not be resumed: SIGCONT failed" in world.last["a1"].reason


def test_the_commit_waits_for_word_of_every_resume_but_not_for_ever(world: World) -> None:
    until(world, Phase.PERSIST)
    world.answer_all(Phase.PERSIST)
    assert state(world) is S.PERSISTING
    world.orders.clear()
    world.tick(world.policy.resume_s)
    world.settle()
    assert state(world) is S.COMMITTED
    assert "has not said within 60.0 s that it runs again" in world.last["a1"].reason


# -- what is ignored, and what cannot be -----------------------------------------------------------


def snap(world: World) -> object:
    return (world.control.attempts(), world.control.jobs(), world.control.next_wakeup())


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


@pytest.mark.parametrize("phase", [*BEFORE_CUT, Phase.PERSIST])
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
def test_a_commit_found_half_way_is_settled_by_the_store(world: World, went_through: bool) -> None:
    until(world, Phase.PERSIST)
    world.store()
    world.attempts["a1"] = replace(world.attempts["a1"], state=S.COMMITTING)
    world.new_leader()
    assert state(world) is S.COMMITTING
    if went_through:
        world.event(events.SnapshotCommitted("a1"))
        assert state(world) is S.COMMITTED
    else:
        world.event(events.CommitRefused("a1", Failure("StoreError", "it is not there")))
        assert state(world) is S.ABORTING
        world.tick(world.policy.adopt_s)
        assert state(world) is S.ABORTED
