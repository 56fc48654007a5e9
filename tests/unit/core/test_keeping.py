"""Bases, pins, deletions and retention as one leader decides them, and as the next goes on."""

from dataclasses import replace

import pytest

from coordinator.core import commands, events
from coordinator.core.errors import BugError
from coordinator.core.kept import Retention
from coordinator.core.model import Failure, Phase
from tests.support.core_checks import sent, two_and_a_spare, until
from tests.support.core_invariants import Invariants
from tests.support.core_world import World

LAST = Retention(keep_last=1)
AWAY = Failure("DriverError", "the file system is away")


@pytest.fixture
def world() -> World:
    """A job with three snapshots, and a spare node."""
    made = two_and_a_spare()
    Invariants(made)
    for name in ("a1", "a2", "a3"):
        made.checkpoint("llm", name)
        made.settle()
    return made


def left(world: World) -> list[str]:
    """What can be restored; of what is deleted nothing is in the image store."""
    assert {a for _, _, a in world.keeping.images} == set(world.snapshots)
    return [name for name, made in world.snapshots.items() if not made.deleting]


def tasks(world: World) -> list[str]:
    return ["collect" if each.dead else "list" for each in world.keeping.tasks]


# -- bases -----------------------------------------------------------------------------------------


def test_the_base_is_the_newest_whole_snapshot_of_the_same_store(world: World) -> None:
    until(world, Phase.PERSIST, "a4")
    assert {order.base for order in sent(world, Phase.PERSIST)} == {"a3"}
    world.settle()
    broken = replace(world.snapshots["a4"], damaged="a chunk is missing")
    world.event(events.SnapshotChanged(broken))
    until(world, Phase.PERSIST, "a5")
    assert {order.base for order in sent(world, Phase.PERSIST)} == {"a3"}


def test_there_is_no_base_in_another_store(world: World) -> None:
    for name in ("node-1", "node-2"):  # shims of one job with different stores are refused
        node = world.nodes[name]
        node.facts = replace(node.facts, store="store-2")
        world.event(events.NodeReported(name, f"s{node.session}", (), node.facts))
        world.report(name)
    until(world, Phase.PERSIST, "a4")
    assert {order.base for order in sent(world, Phase.PERSIST)} == {""}


def test_the_next_leader_keeps_the_base_of_an_attempt(world: World) -> None:
    until(world, Phase.PERSIST, "a4")
    world.store()
    world.new_leader()
    assert {order.base for order in sent(world, Phase.PERSIST)} == {"a3"}
    world.keeping.delete("a3")
    assert "shares its stored bytes" in world.refused["d1"].failure.what
    world.settle()
    world.keeping.delete("a3", cleaning="d2")
    world.settle()
    assert left(world) == ["a1", "a2", "a4"]


# -- races -----------------------------------------------------------------------------------------


def test_a_restore_that_is_first_makes_the_retention_wait(world: World) -> None:
    world.restore("llm", "r1", "a1")
    world.keeping.retain("llm", LAST)
    world.store()
    assert not world.snapshots["a1"].deleting
    assert world.snapshots["a2"].deleting
    world.settle()
    assert left(world) == ["a3"]  # once the restore was over


def test_a_retention_that_is_first_refuses_the_restore(world: World) -> None:
    world.keeping.retain("llm", LAST)
    world.restore("llm", "r1", "a1")  # it is not even marked yet
    assert "is being deleted" in world.refused["r1"].failure.what
    world.settle()
    assert left(world) == ["a3"]


def test_a_pin_that_the_core_hears_of_late_is_respected(world: World) -> None:
    world.snapshots["a1"] = replace(world.snapshots["a1"], pinned="the paper")
    world.keeping.retain("llm", LAST)
    world.settle()
    assert left(world) == ["a1", "a3"]


def test_what_was_refused_among_others_is_told_in_the_end(world: World) -> None:
    world.snapshots["a1"] = replace(world.snapshots["a1"], pinned="the paper")
    world.keeping.delete("a1", "a2")
    world.settle()
    assert left(world) == ["a1", "a3"]
    told = world.last["d1"]
    assert told.state == "DONE"
    assert told.failure is not None


def test_who_is_over_here_and_not_in_the_store_is_respected(world: World) -> None:
    """Another leader would go on storing with that base: its end must be recorded first."""
    until(world, Phase.PERSIST, "a4")
    world.store()
    world.event(events.AbortRequested("a4", "enough"))
    world.answer_all()
    ends = [write for write in world.writes if isinstance(write, commands.PutAttempt)]
    world.writes.clear()  # etcd is away
    world.tick(world.policy.undo_s)
    world.writes.clear()
    assert ends
    world.keeping.delete("a1", "a2", "a3", force=True)
    world.settle()
    assert list(world.snapshots) == ["a3"]
    told = world.last["d1"].failure
    assert told is not None
    assert "in use" in told.what


def test_an_attempt_never_takes_a_base_that_goes(world: World) -> None:
    world.keeping.delete("a1", "a2", "a3", force=True)
    until(world, Phase.PERSIST, "a4")
    assert {order.base for order in sent(world, Phase.PERSIST)} == {""}
    world.settle()
    assert left(world) == ["a4"]
    assert world.jobs["llm"].latest == "a4"


def test_the_newest_goes_only_with_all_the_others_and_if_told_so(world: World) -> None:
    world.keeping.delete("a3", cleaning="d1")
    assert "older ones are a1, a2" in world.refused["d1"].failure.what
    world.keeping.delete("a1", "a2", "a3", cleaning="d2")
    assert "--force" in world.refused["d2"].failure.advice
    world.keeping.delete("a1", "a2", "a3", cleaning="d3", force=True)
    world.settle()
    assert left(world) == []
    assert world.control.jobs()[0].job.latest == world.jobs["llm"].latest == ""


# -- trouble ---------------------------------------------------------------------------------------


def test_an_unreachable_store_leaves_it_marked_and_is_tried_again_ever_more_seldom(
    world: World,
) -> None:
    world.keeping.failure = AWAY
    world.keeping.delete("a1")
    world.settle()
    seen = world.now
    pauses = []
    for _ in range(12):
        assert world.snapshots["a1"].deleting
        assert any("the file system is away" in p for p in world.control.jobs()[0].problems)
        world.tick(world.control.next_wakeup() - world.now)  # type: ignore[operator]
        pauses.append(world.now - seen)
        seen = world.now
        world.settle()
    assert pauses == [5, 10, 20, 40, 80, 160, 300, 300, 300, 300, 300, 300]
    world.keeping.failure = None
    world.tick(300)
    world.settle()
    assert left(world) == ["a2", "a3"]
    assert not world.control.jobs()[0].problems
    assert world.last["d1"].failure is None  # it was done in the end


def test_another_deletion_may_join_one_that_waits(world: World) -> None:
    world.keeping.failure = AWAY
    world.keeping.delete("a1")
    world.settle()
    world.keeping.delete("a2", cleaning="d2")
    world.settle()
    world.keeping.failure = None
    world.tick(10)
    world.settle()
    assert left(world) == ["a3"]


def test_a_node_that_comes_ends_the_wait_for_one(world: World) -> None:
    for name in ("node-1", "node-2", "node-3"):
        world.lose(name)
    world.keeping.delete("a1")
    world.store()
    assert "no node in reach sees" in world.control.jobs()[0].problems[0]
    world.attach("node-3")
    world.settle()
    assert left(world) == ["a2", "a3"]


def test_a_task_that_is_never_answered_has_a_deadline(world: World) -> None:
    world.keeping.delete("a1")
    world.store()
    assert tasks(world) == ["list"]
    world.keeping.tasks.clear()
    world.tick(world.policy.clean_list_s)
    assert "has not answered" in world.control.jobs()[0].problems[0]
    world.tick(world.policy.clean_again_s)
    world.settle()
    assert left(world) == ["a2", "a3"]


def test_an_answer_to_an_older_task_counts_for_nothing(world: World) -> None:
    world.keeping.delete("a1")
    world.store()
    late = world.keeping.done(world.keeping.tasks.pop())
    world.tick(world.policy.clean_list_s + world.policy.clean_again_s)
    world.event(late)
    assert tasks(world) == ["list"]
    world.event(replace(late, epoch=0))
    world.settle()
    assert left(world) == ["a2", "a3"]


@pytest.mark.parametrize("steps", range(7))
@pytest.mark.parametrize("done", [False, True], ids=["lost", "arrived"])
def test_another_leader_after_every_step(world: World, steps: int, done: bool) -> None:
    """What was on its way is lost, or it arrives and its answer is lost."""
    world.keeping.retain("llm", LAST)
    for _ in range(steps):
        if world.writes:
            world.store_one()
        elif world.keeping.tasks:
            world.keeping.answer(world.keeping.tasks.pop(0))
    if done:
        for write in world.writes:
            world.apply(write)
        for task in world.keeping.tasks:
            world.keeping.done(task)
    world.new_leader()
    for name, made in world.snapshots.items():
        if made.deleting:
            world.restore("llm", f"r-{name}", name)
            assert "is being deleted" in world.refused[f"r-{name}"].failure.what
    world.settle()
    world.tick(world.policy.retain_s)
    world.settle()
    assert left(world) == ["a3"]
    world.restore("llm", "r1", "a3")
    world.settle()
    assert world.restores["r1"].state == "RUNNING"


# -- garbage ---------------------------------------------------------------------------------------


def garbage(world: World, *names: str) -> None:
    world.keeping.images |= {("store-1", "llm", name) for name in names}


def collect(world: World, **how: bool) -> commands.Announce:
    world.event(events.CollectionRequested("llm", "g1", **how))
    world.settle()
    return world.last["g1"]


def test_a_collection_takes_what_ended_attempts_have_left_and_nothing_else(world: World) -> None:
    until(world, Phase.DUMP, "a4")
    world.event(events.AbortRequested("a4", "enough"))
    world.settle()
    garbage(world, "a4", "stranger")
    world.keeping.images.add(("store-1", "other", "a4"))
    dry = collect(world, dry_run=True).cleaned
    assert dry is not None
    assert (dry.objects, dry.attempts, dry.unknown) == (1, ("a4",), ("stranger",))
    assert ("store-1", "llm", "a4") in world.keeping.images
    world.event(events.CollectionRequested("llm", "g2"))
    world.settle()
    assert {(job, a) for _, job, a in world.keeping.images} == {
        *(("llm", name) for name in ("a1", "a2", "a3", "stranger")), ("other", "a4"),
    }  # fmt: skip


def test_an_attempt_under_way_is_no_garbage(world: World) -> None:
    until(world, Phase.PERSIST, "a4")
    garbage(world, "a4")
    told = collect(world)
    assert told.cleaned is not None
    assert told.cleaned.attempts == ()


def test_trouble_ends_a_collection_of_garbage(world: World) -> None:
    world.keeping.failure = AWAY
    told = collect(world)
    assert told.failure == AWAY
    assert told.state == "FAILED"


def test_what_is_given_up_and_not_recorded_is_no_garbage(world: World) -> None:
    """The next leader may still commit it; see `adoption`."""
    until(world, Phase.PERSIST, "a4")
    world.store()
    garbage(world, "a4")
    world.event(events.AbortRequested("a4", "enough"))
    world.answer_all()
    world.writes.clear()  # etcd is away
    world.event(events.CollectionRequested("llm", "g1"))
    world.settle()
    assert ("store-1", "llm", "a4") in world.keeping.images


def test_a_snapshot_in_use_that_is_deleted_would_be_seen(world: World) -> None:
    world.restore("llm", "r1", "a1")
    keeper = world.control._keeper
    keeper.user_of = lambda job, snapshot: ""  # type: ignore[method-assign]
    keeper.delete(events.DeletionRequested("llm", "d1", ("a1",)), world.now)
    del keeper.user_of
    with pytest.raises(BugError, match="being deleted"):
        world.control.validate()
