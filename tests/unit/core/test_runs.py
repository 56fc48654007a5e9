"""Runs of a job: who is taken in, who is refused, what waits, and what a new leader cannot know."""

from dataclasses import replace

import pytest

from coordinator.core import commands, events
from coordinator.core.model import Failure, Phase
from tests.support.core_shims import Node, Worker, facts
from tests.support.core_world import World


@pytest.fixture
def world() -> World:
    """A job of two workers, and two nodes without any."""
    made = World()
    for number in range(1, 5):
        made.node(Node(facts(f"node-{number}")))
    made.start("llm", ["node-1", "node-2"])
    return made


def launch(world: World, worker: int, node: str, workers: int = 2) -> list[commands.Command]:
    """`shim run` on a node; returns what the core decided about its Hello."""
    decided: list[commands.Command] = []
    world.watchers.append(decided.append)
    made = Worker("llm", worker, workers, workers, {worker: 1})
    world.nodes[node].workers[("llm", worker)] = made
    world.attach(node, new_session=True)
    world.watchers.pop()
    return decided


def incarnation(world: World, node: str, worker: int) -> int | None:
    found = world.nodes[node].workers.get(("llm", worker))
    return found.incarnation if found else None


def exited(world: World, node: str, worker: int) -> None:
    gone = world.nodes[node].workers.pop(("llm", worker))
    world.event(events.WorkerExited(node, "llm", worker, gone.incarnation, 0))


def test_nobody_is_the_job_before_the_run_is_recorded() -> None:
    world = World()
    world.node(Node(facts("node-1")))
    decided = launch(world, 0, "node-1", workers=1)
    assert [type(c) for c in decided] == [commands.BeginRun]
    view = world.control.jobs()[0]
    assert (view.state, view.workers, view.job.incarnation) == ("starting", (), 0)
    world.checkpoint("llm", "a1")
    assert world.refused["a1"].failure.kind == "Busy"
    world.store()
    assert incarnation(world, "node-1", 0) == 1
    assert world.control.jobs()[0].state == "running"


def test_a_run_that_the_store_refuses_is_tried_again_later() -> None:
    world = World()
    world.node(Node(facts("node-1")))
    launch(world, 0, "node-1", workers=1)
    world.writes.clear()
    world.event(events.RunRefused("llm", Failure("StoreError", "etcd said no")))
    world.report("node-1")
    assert not world.writes, "not at once"
    world.checkpoint("llm", "a1")
    assert "etcd said no" in world.refused["a1"].failure.what
    world.now += world.policy.admit_s
    world.report("node-1")
    world.store()
    assert incarnation(world, "node-1", 0) == 1


def test_a_report_under_way_does_not_take_a_worker_out_again(world: World) -> None:
    state = world.nodes["node-1"].workers[("llm", 0)].report()
    late = replace(state, incarnation=0)
    assert world.event(events.NodeReported("node-1", "s1", (late,))) == []
    assert world.control.jobs()[0].workers[0].incarnation == 1
    world.event(events.WorkerExited("node-1", "llm", 0, 0, 1))
    assert world.control.jobs()[0].state == "incomplete"


def test_who_was_not_told_is_told_on_its_next_stream(world: World) -> None:
    world.nodes["node-1"].workers[("llm", 0)].incarnation = 0
    world.lose("node-1")
    decided = world.event(world.nodes["node-1"].hello())
    assert commands.AdmitWorker("node-1", "llm", 0, 1) in decided


@pytest.mark.parametrize("number", [0, 1])
def test_a_place_that_is_held_is_not_given_away(world: World, number: int) -> None:
    decided = launch(world, number, "node-3")
    (fence,) = [c for c in decided if isinstance(c, commands.FenceWorkers)]
    assert f"already runs on node-{number + 1}" in fence.reason
    assert not world.writes
    assert world.control.jobs()[0].state == "running"


def test_a_refused_worker_is_told_once_a_stream(world: World) -> None:
    node = world.nodes["node-3"]
    node.workers[("llm", 0)] = Worker("llm", 0, 2, 2, {0: 1})
    state = node.workers[("llm", 0)].report()
    world.attach("node-3", new_session=True)
    again = events.NodeReported("node-3", "s2", (state,))
    assert world.event(again) == []
    assert [c for c in world.event(replace(node.hello(), workers=(state,)))
            if isinstance(c, commands.FenceWorkers)]  # fmt: skip


def test_a_worker_that_ended_is_replaced_within_the_run(world: World) -> None:
    exited(world, "node-2", 1)
    launch(world, 1, "node-3")
    assert incarnation(world, "node-3", 1) == 1
    assert world.control.jobs()[0].nodes == ("node-1", "node-3")


def test_a_worker_that_is_lost_is_replaced_in_a_new_run_that_the_others_join(world: World) -> None:
    world.lose("node-2")
    launch(world, 1, "node-3")
    world.store()
    assert [incarnation(world, n, w) for n, w in (("node-1", 0), ("node-3", 1))] == [2, 2]
    assert world.jobs["llm"].incarnation == 2
    world.attach("node-2")
    assert incarnation(world, "node-2", 1) is None, "fenced"


def test_the_world_may_change_from_run_to_run(world: World) -> None:
    exited(world, "node-1", 0)
    exited(world, "node-2", 1)
    launch(world, 2, "node-3", workers=3)
    launch(world, 0, "node-1", workers=3)
    refused = launch(world, 1, "node-2", workers=2)
    (fence,) = [c for c in refused if isinstance(c, commands.FenceWorkers)]
    assert "has 2 workers; it has 3" in fence.reason
    world.store()
    launch(world, 1, "node-2", workers=3)
    view = world.control.jobs()[0]
    assert (view.state, view.job.workers, view.job.world_size) == ("running", 3, 3)


def test_older_workers_that_return_while_a_run_is_recorded(world: World) -> None:
    world.lose("node-1")
    world.lose("node-2")
    launch(world, 0, "node-3", workers=3)
    launch(world, 1, "node-4", workers=3)
    world.attach("node-1")
    world.attach("node-2")
    world.nodes["node-2"].workers[("llm", 2)] = world.nodes["node-2"].workers.pop(("llm", 1))
    world.nodes["node-2"].workers[("llm", 2)].worker = 2
    world.report("node-2")
    world.store()
    assert incarnation(world, "node-1", 0) is None, "another one has its place"
    assert incarnation(world, "node-2", 2) is None, "it is of a world of two"
    assert incarnation(world, "node-3", 0) == incarnation(world, "node-4", 1) == 2


def test_two_that_start_the_same_worker_at_once(world: World) -> None:
    exited(world, "node-1", 0)
    exited(world, "node-2", 1)
    launch(world, 0, "node-3")
    (fence,) = [c for c in launch(world, 0, "node-4") if isinstance(c, commands.FenceWorkers)]
    assert "is being started on node-3 already" in fence.reason
    world.store()
    assert incarnation(world, "node-3", 0) == 2


def test_a_started_worker_waits_for_the_end_of_a_restore(world: World) -> None:
    world.checkpoint("llm", "a1")
    world.settle()
    world.lose("node-2")
    world.restore("llm", "r1", "a1")
    world.store()
    assert [type(c) for c in launch(world, 1, "node-4")] == [commands.DeferWorker]
    world.answer_all(Phase.FETCH)
    world.store()
    world.answer_all(Phase.CLEAR)
    assert ("llm", 1) not in world.nodes["node-4"].workers, "it ends before the trees come back"
    world.report("node-4")
    world.settle()
    assert world.restores["r1"].state == "RUNNING"
    assert world.control.jobs()[0].nodes == ("node-1", "node-3")


# -- a new leader ----------------------------------------------------------------------------------


def test_a_new_leader_waits_for_older_workers_before_it_begins_a_run(world: World) -> None:
    world.lose("node-1")
    world.lose("node-2")
    world.new_leader()
    assert [type(c) for c in launch(world, 0, "node-3")] == [commands.DeferWorker]
    assert world.control.jobs()[0].state == "starting"
    world.attach("node-1")
    world.report("node-3")
    assert ("llm", 0) not in world.nodes["node-3"].workers, "the older one lives: refused"
    world.attach("node-2")
    assert world.control.jobs()[0].state == "running"


def test_a_new_leader_begins_a_run_when_nobody_came(world: World) -> None:
    world.lose("node-1")
    world.lose("node-2")
    world.new_leader()
    launch(world, 0, "node-3")
    world.now += world.policy.adopt_s
    world.report("node-3")
    world.store()
    assert incarnation(world, "node-3", 0) == 2
    world.attach("node-1")
    assert incarnation(world, "node-1", 0) is None, "fenced"


def test_a_new_leader_does_not_know_who_held_a_place(world: World) -> None:
    world.lose("node-2")
    world.new_leader()
    world.now += world.policy.adopt_s
    launch(world, 1, "node-3")
    world.store()
    assert incarnation(world, "node-1", 0) == incarnation(world, "node-3", 1) == 2
    world.attach("node-2")
    assert incarnation(world, "node-2", 1) is None, "fenced"


def test_a_leader_that_dies_in_a_restore_that_cleared_nothing_leaves_the_job(world: World) -> None:
    world.checkpoint("llm", "a1")
    world.settle()
    world.restore("llm", "r1", "a1")
    world.store()
    assert {o.phase for o in world.orders} == {Phase.FETCH}
    world.new_leader()
    world.settle()
    assert world.restores["r1"].state == "FAILED"
    assert incarnation(world, "node-1", 0) == incarnation(world, "node-2", 1) == 2
    assert world.control.jobs()[0].state == "running"
    world.checkpoint("llm", "a2")
    world.settle()
    assert world.snapshots["a2"].incarnation == 2


# -- undo that a node could not be told ------------------------------------------------------------


def undo_orders(decided: list[commands.Command]) -> list[tuple[str, bool, bool]]:
    found = [c for c in decided if isinstance(c, commands.SendOrder) and c.phase is Phase.UNDO]
    return [(c.action, c.kill, c.keep) for c in found]


def until_persisting(world: World) -> None:
    world.checkpoint("llm", "a1")
    world.store()
    for phase in (Phase.HOLD, Phase.PARK, Phase.DUMP, Phase.RESUME):
        world.answer_all(phase)


def test_what_a_lost_node_stored_for_an_aborted_attempt_is_undone_on_its_return(
    world: World,
) -> None:
    until_persisting(world)
    world.lose("node-2")
    world.settle()
    assert world.attempts["a1"].state == "ABORTED"
    world.nodes["node-2"].workers.clear()  # its shim died too
    world.nodes["node-2"].session += 1
    world.nodes["node-2"].attached = True
    assert undo_orders(world.event(world.nodes["node-2"].hello())) == [("a1", False, False)]
    world.lose("node-2")
    world.nodes["node-2"].attached = True
    assert undo_orders(world.event(world.nodes["node-2"].hello())) == [("a1", False, False)]
    world.event(events.Undone(1, "node-2", "llm", 1, "a1"))
    assert undo_orders(world.event(world.nodes["node-2"].hello())) == []


def test_what_was_undone_or_never_stored_is_not_owed(world: World) -> None:
    world.checkpoint("llm", "a0")
    world.store()
    world.answer_all(Phase.HOLD)
    world.lose("node-2")
    world.settle()
    world.attach("node-2")
    world.settle()
    assert undo_orders(world.event(world.nodes["node-1"].hello())) == []


def test_images_of_a_snapshot_are_kept_when_its_worker_is_let_go(world: World) -> None:
    """The worker's node was lost before it heard RESUME, after its images were stored."""
    world.checkpoint("llm", "a1")
    world.store()
    for phase in (Phase.HOLD, Phase.PARK, Phase.DUMP):
        world.answer_all(phase)
    held = world.nodes["node-2"].workers[("llm", 1)]
    world.answer(next(o for o in world.orders if o.phase is Phase.PERSIST and o.worker == 1))
    world.lose("node-2")
    world.settle()
    assert world.attempts["a1"].state == "COMMITTED"
    assert held.held_by == "a1"
    world.nodes["node-2"].attached = True
    assert undo_orders(world.event(world.nodes["node-2"].hello())) == [("a1", False, True)]


def test_a_new_leader_does_not_know_whether_images_are_a_snapshots(world: World) -> None:
    world.checkpoint("llm", "a1")
    world.settle()
    held = world.nodes["node-2"].workers[("llm", 1)]
    held.held_by, held.state = "a-forgotten", "stopped"
    world.nodes["node-2"].attached = False
    world.new_leader()
    world.nodes["node-2"].attached = True
    assert undo_orders(world.event(world.nodes["node-2"].hello())) == [("a-forgotten", False, True)]


# -- who comes late is told why it waits -----------------------------------------------------------


def deferred(decided: list[commands.Command]) -> list[str]:
    return [c.reason for c in decided if isinstance(c, commands.DeferWorker)]


def test_a_worker_that_joins_during_an_attempt_is_told_why_it_waits(world: World) -> None:
    until_persisting(world)
    world.answer(next(o for o in world.orders if o.phase is Phase.PERSIST and o.worker == 1))
    heard: list[commands.Command] = []
    world.watchers.append(heard.append)
    world.nodes["node-2"].workers.clear()
    world.event(events.WorkerExited("node-2", "llm", 1, 1, 0))
    launch(world, 1, "node-3")
    reason = "attempt a1 has the job, and who takes part in it was settled when it began"
    assert deferred(heard) == [reason]
    assert world.control.jobs()[0].waiting == reason
    world.report("node-3")
    assert deferred(heard) == [reason], "once"
    world.attach("node-3", new_session=True)
    assert deferred(heard) == [reason, reason], "another shim has not heard it"
    world.settle()
    assert world.snapshots["a1"].workers[1].node == "node-2"
    world.report("node-3")
    world.settle()
    assert incarnation(world, "node-3", 1) is not None
    assert world.control.jobs()[0].waiting == ""


def test_a_worker_that_waits_for_a_new_leader_to_be_sure_is_told(world: World) -> None:
    world.lose("node-1")
    world.lose("node-2")
    world.new_leader()
    launch(world, 0, "node-3")
    assert "this coordinator is new" in world.deferred[("llm", 0)]
    assert world.control.jobs()[0].waiting == world.deferred[("llm", 0)]
    assert world.control.jobs()[0].state == "starting"
