"""The checkpoint round: the way through, what is refused, what the ranks say."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from coordinator.core import commands, events
from coordinator.core.model import AttemptState, Cut, Finding, Phase, RankState, Severity
from coordinator.core.policy import Policy
from tests.support.core_checks import (
    BEFORE_CUT,
    failure,
    running,
    sent,
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
    policy = Policy()
    assert {o.stand_still_s for o in world.orders} == {policy.stand_still_s}
    assert policy.stand_still_s >= policy.park_s + policy.dump_s + policy.resume_s


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


def test_a_node_that_was_away_when_the_others_stopped_is_told_to_stop(world: World) -> None:
    until(world, Phase.STOP, stop=True)
    world.lose("node-2")
    world.attach("node-2")
    assert [o.node for o in sent(world, Phase.STOP)] == ["node-1", "node-2"]
    world.settle()
    assert state(world) is S.COMMITTED
    assert {w.state for n in world.nodes.values() for w in n.workers.values()} == {"exited"}


@pytest.mark.parametrize("answered", [0, 2])
def test_stop_does_not_come_to_what_was_launched_under_the_number_of_one_that_ended(
    world: World, answered: int
) -> None:
    """It ends while the images are stored, or while the snapshot is committed."""
    until(world, Phase.PERSIST, stop=True)
    for order in sent(world, Phase.PERSIST)[:answered]:
        world.event(world.answer(order))
    node = world.nodes["node-2"]
    old = node.workers[("llm", 1)]
    world.event(events.WorkerExited("node-2", "llm", 1, old.incarnation, -9, ""))
    world.orders = [order for order in world.orders if order.phase is Phase.PERSIST]
    world.answer_all(Phase.PERSIST)
    world.store()
    assert [order.node for order in sent(world, Phase.STOP)] == ["node-1"]
    world.settle()
    assert state(world) is S.COMMITTED
    assert world.attempts["a1"].owed == ()


def test_a_node_that_is_back_after_the_job_was_stopped_is_told_to_stop(world: World) -> None:
    until(world, Phase.STOP, stop=True)
    world.lose("node-2")
    world.answer_all(Phase.STOP)
    assert state(world) is S.COMMITTED
    world.attach("node-2")
    assert [(o.node, o.phase) for o in world.orders] == [("node-2", Phase.STOP)]
    world.settle()
    assert {w.state for n in world.nodes.values() for w in n.workers.values()} == {"exited"}


def test_freeze_skips_hold_and_park(world: World) -> None:
    until(world, Phase.DUMP, cut=Cut.FREEZE)
    assert [t.phase for t in world.control.attempts()[0].timings] == [Phase.ADMIT]
    world.settle()
    snapshot = world.snapshots["a1"]
    assert (snapshot.cut, snapshot.step) == (Cut.FREEZE, 11)


def test_devices_are_locked_and_saved_where_there_are_any(world: World) -> None:
    world.nodes["node-1"].workers[("llm", 0)].gpu = True
    world.report("node-1")
    until(world, Phase.GPU_LOCK)
    world.answer_all(Phase.GPU_LOCK)
    assert state(world) is S.SAVING
    world.settle()
    assert state(world) is S.COMMITTED


def test_devices_that_came_into_use_after_the_last_report_are_seen_by_the_hold(
    world: World,
) -> None:
    world.nodes["node-1"].workers[("llm", 0)].gpu = True
    until(world, Phase.GPU_LOCK)
    world.settle()
    assert state(world) is S.COMMITTED
    record = world.control.attempt("a1")
    assert record is not None
    assert record.gpu


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


def test_shims_with_different_stores_are_named(world: World) -> None:
    """Otherwise half of the snapshot would be where the other half's nodes do not look."""
    node = world.nodes["node-2"]
    node.facts = replace(node.facts, store="store-2")
    world.attach("node-2")
    world.checkpoint("llm", "a1")
    refused = world.refused["a1"].failure
    assert refused.kind == "NotReady"
    assert "node-1 see store-1; node-2 see store-2" in refused.what
    assert "--store" in refused.advice


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
