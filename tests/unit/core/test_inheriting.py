"""What a new leader finds half done: it looks, goes on where it can, and owes what was owed."""

from dataclasses import replace

import pytest

from coordinator.core import commands, events
from coordinator.core.model import AttemptState, Phase, RestoreState
from tests.support.core_checks import failure, running, sent, two_and_a_spare
from tests.support.core_checks import state as attempt_state
from tests.support.core_checks import until as attempt_until
from tests.support.core_restores import half_lost_world, incarnations, state, until
from tests.support.core_world import World

S = RestoreState
A = AttemptState


@pytest.fixture
def world() -> World:
    """A job with a snapshot, one of its nodes lost, and a spare."""
    return half_lost_world()


@pytest.fixture
def whole() -> World:
    """A job that runs, and a spare."""
    return two_and_a_spare()


def released(world: World, *workers: int) -> None:
    until(world, Phase.RELEASE)
    for order in [o for o in sent(world, Phase.RELEASE) if o.worker in workers]:
        world.answer(order)


def succeed(world: World, order: tuple[str, ...]) -> None:
    """Another leader comes, and these nodes attach to it one after the other."""
    for name in order:
        world.nodes[name].attached = False
    world.new_leader()
    for name in order:
        world.attach(name)


def nobody_comes(world: World, *nodes: str, asked: str = "") -> None:
    """Another leader waits for these nodes in vain; an operator may have asked it to give up."""
    for name in nodes:
        world.nodes[name].attached = False
    world.new_leader()
    if asked:
        world.event(events.AbortRequested(asked, "enough"))
    world.tick(world.policy.adopt_s)
    world.settle()


def test_a_job_that_was_taken_back_is_not_fenced_by_the_next_leader(whole: World) -> None:
    """CLEARING was recorded, its answer was lost, and that the restore had failed never was."""
    whole.checkpoint("llm", "a1")
    whole.settle()
    whole.restore("llm", "r1", "a1")
    whole.store()
    whole.answer_all(Phase.FETCH)
    recorded = whole.writes[-1]
    assert isinstance(recorded, commands.PutRestore)
    whole.restores["r1"] = recorded.record
    whole.tick(whole.policy.admit_s)
    whole.answer_all(Phase.UNDO)
    assert (state(whole), whole.restores["r1"].state) == (S.FAILED, S.CLEARING)
    assert incarnations(whole) == {"node-1": [2], "node-2": [2], "node-3": []}
    whole.new_leader()
    whole.settle()
    assert whole.restores["r1"].state is S.FAILED
    assert incarnations(whole) == {"node-1": [2], "node-2": [2], "node-3": []}
    assert running(whole)


# -- a restore that was being released -------------------------------------------------------------


@pytest.mark.parametrize("order", [("node-1", "node-3"), ("node-3", "node-1")])
@pytest.mark.parametrize("ran", [(), (0,), (1,), (0, 1)])
def test_a_new_leader_goes_on_with_a_release(
    world: World, order: tuple[str, ...], ran: tuple[int, ...]
) -> None:
    released(world, *ran)
    assert world.restores["r1"].state is S.RELEASING
    world.writes.clear()
    succeed(world, order)
    assert not sent(world, Phase.UNDO)
    assert {o.worker for o in sent(world, Phase.RELEASE)} == {0, 1} - set(ran)
    world.settle()
    assert world.restores["r1"].state is S.RUNNING
    assert world.restores["r1"].failure is None
    assert incarnations(world) == {"node-1": [2], "node-2": [1], "node-3": [2]}
    assert running(world)
    world.report("node-1")
    world.report("node-3")
    view = world.control.jobs()[0]
    assert (view.state, view.nodes) == ("running", ("node-1", "node-3"))
    world.checkpoint("llm", "a2")
    world.settle()
    assert world.snapshots["a2"].incarnation == 2


def test_a_release_of_which_one_is_gone_is_cleared_away(world: World) -> None:
    released(world, 0)
    world.nodes["node-3"].workers.clear()
    succeed(world, ("node-1", "node-3"))
    assert "worker 1 is not there any more on node-3" in world.control.restores()[-1].reason
    assert [(o.node, o.kill) for o in sent(world, Phase.UNDO)] == [
        ("node-1", True),
        ("node-3", True),
    ]
    world.settle()
    assert state(world) is S.FAILED
    assert incarnations(world) == {"node-1": [], "node-2": [1], "node-3": []}


def test_a_release_waits_for_its_nodes_only_so_long(world: World) -> None:
    released(world)
    world.nodes["node-3"].attached = False
    world.new_leader()
    world.settle()
    assert state(world) is S.RELEASING
    world.lose("node-1")
    assert state(world) is S.RELEASING, "its worker may run; it may come again"
    world.attach("node-1")
    assert not world.orders
    world.tick(world.policy.adopt_s)
    world.settle()
    assert state(world) is S.FAILED
    assert world.restores["r1"].owed == (1,)
    world.attach("node-3")
    world.settle()
    assert incarnations(world) == {"node-1": [], "node-2": [1], "node-3": []}
    assert world.restores["r1"].owed == ()


@pytest.mark.parametrize("asked", [False, True])
def test_a_release_whose_nodes_never_come_is_given_up(world: World, asked: bool) -> None:
    released(world)
    nobody_comes(world, "node-1", "node-3", asked="r1" if asked else "")
    assert (state(world), world.restores["r1"].owed) == (S.FAILED, (0, 1))


# -- an attempt after its cut ----------------------------------------------------------------------


@pytest.mark.parametrize("stop", [False, True])
@pytest.mark.parametrize("stored", [(), (0,), (0, 1)])
@pytest.mark.parametrize("resumed", [False, True])
def test_a_new_leader_goes_on_storing_what_was_cut(
    whole: World, stop: bool, stored: tuple[int, ...], resumed: bool
) -> None:
    attempt_until(whole, Phase.PERSIST, stop=stop)
    whole.store()
    if resumed:
        whole.answer_all(Phase.RESUME)
    for order in [o for o in sent(whole, Phase.PERSIST) if o.worker in stored]:
        whole.answer(order)
    whole.new_leader()
    assert attempt_state(whole) is A.PERSISTING
    assert len(sent(whole, Phase.RESUME)) == (0 if stop or resumed else 2)
    whole.settle()
    assert whole.attempts["a1"].state is A.COMMITTED
    assert whole.snapshots["a1"].epoch == 2
    assert whole.snapshots["a1"].step == 12
    assert whole.snapshots["a1"].world_size == 4
    states = {w.state for n in whole.nodes.values() for w in n.workers.values()}
    assert states == ({"exited"} if stop else {"running"})


def test_a_cut_of_which_one_has_let_go_is_undone(whole: World) -> None:
    attempt_until(whole, Phase.PERSIST, stop=True)
    whole.store()
    worker = whole.nodes["node-2"].workers[("llm", 1)]
    worker.held_until = whole.now
    whole.run_out()
    whole.new_leader()
    whole.settle()
    assert whole.attempts["a1"].state is A.ABORTED
    assert failure(whole).worker == 1
    assert running(whole)


def test_a_cut_whose_nodes_do_not_all_come_is_undone(whole: World) -> None:
    attempt_until(whole, Phase.PERSIST)
    whole.store()
    whole.nodes["node-2"].attached = False
    whole.new_leader()
    whole.settle()
    assert attempt_state(whole) is A.PERSISTING
    whole.tick(whole.policy.adopt_s)
    assert "worker 1 on node-2" in failure(whole).what
    whole.settle()
    assert whole.attempts["a1"].owed == (1,)


@pytest.mark.parametrize("asked", [False, True])
def test_a_cut_whose_nodes_never_come_is_given_up(whole: World, asked: bool) -> None:
    attempt_until(whole, Phase.PERSIST)
    whole.store()
    nobody_comes(whole, "node-1", "node-2", asked="a1" if asked else "")
    assert (attempt_state(whole), whole.attempts["a1"].owed) == (A.ABORTED, (0, 1))


def test_a_cut_that_was_given_up_stays_given_up(whole: World) -> None:
    attempt_until(whole, Phase.PERSIST, stop=True)
    whole.store()
    whole.event(events.AbortRequested("a1", "not now"))
    whole.store()
    assert whole.attempts["a1"].state is A.ABORTING
    whole.new_leader()
    assert {o.phase for o in whole.orders} == {Phase.UNDO}
    whole.settle()
    assert whole.attempts["a1"].state is A.ABORTED
    assert running(whole)


# -- a job that is to stop -------------------------------------------------------------------------


def committed_with_stop(world: World) -> None:
    attempt_until(world, Phase.STOP, stop=True)
    assert world.attempts["a1"].state is A.STOPPING


@pytest.mark.parametrize("order", [("node-1", "node-2"), ("node-2", "node-1")])
def test_a_new_leader_goes_on_stopping(whole: World, order: tuple[str, ...]) -> None:
    committed_with_stop(whole)
    whole.answer(sent(whole, Phase.STOP)[0])
    succeed(whole, order)
    assert [o.worker for o in sent(whole, Phase.STOP)] == [1]
    whole.settle()
    assert whole.attempts["a1"].state is A.COMMITTED
    assert whole.attempts["a1"].owed == ()
    assert {w.state for n in whole.nodes.values() for w in n.workers.values()} == {"exited"}


@pytest.mark.parametrize("leaders", [0, 1, 2])
def test_who_was_away_when_the_job_stopped_is_stopped_on_return(whole: World, leaders: int) -> None:
    committed_with_stop(whole)
    whole.lose("node-2")
    whole.settle()
    assert whole.attempts["a1"].owed == (1,)
    whole.tick(1000)
    assert whole.nodes["node-2"].workers[("llm", 1)].state == "running", "its own timer let it go"
    for _ in range(leaders):
        whole.new_leader()
        whole.settle()
    whole.attach("node-2")
    assert [(o.node, o.worker) for o in sent(whole, Phase.STOP)] == [("node-2", 1)]
    whole.settle()
    assert whole.nodes["node-2"].workers[("llm", 1)].state == "exited"
    assert whole.attempts["a1"].owed == ()


def test_a_later_run_is_not_stopped_by_what_an_older_one_was_owed(whole: World) -> None:
    committed_with_stop(whole)
    whole.lose("node-2")
    whole.settle()
    worker = whole.nodes["node-2"].workers[("llm", 1)]
    worker.let_go()
    worker.incarnation = 0  # launched anew while the node was away
    whole.new_leader()
    whole.tick(whole.policy.adopt_s)
    whole.attach("node-2")
    assert not sent(whole, Phase.STOP)
    whole.settle()
    assert whole.attempts["a1"].owed == (), "who was to be stopped has ended"


# -- what is owed ----------------------------------------------------------------------------------


@pytest.mark.parametrize("leaders", [0, 1, 2])
@pytest.mark.parametrize("phase", [Phase.HOLD, Phase.DUMP, Phase.PERSIST])
def test_what_an_absent_node_was_to_undo_is_owed_by_every_leader(
    whole: World, phase: Phase, leaders: int
) -> None:
    attempt_until(whole, phase)
    whole.store()
    whole.lose("node-2", "power cut")
    whole.settle()
    assert whole.attempts["a1"].owed == (1,)
    whole.nodes["node-2"].workers.clear()  # its shim died too
    for _ in range(leaders):
        whole.new_leader()
        whole.settle()
    whole.attach("node-2", new_session=True)
    assert [(o.node, o.worker, o.keep) for o in sent(whole, Phase.UNDO)] == [("node-2", 1, False)]
    whole.settle()
    assert whole.attempts["a1"].owed == ()
    whole.new_leader()
    whole.settle()
    whole.attach("node-2")
    assert not whole.orders, "paid once"


def test_an_heir_finds_members_that_have_no_worker_any_more(whole: World) -> None:
    """A shim that died with its worker may have left images: it is told by its node's name."""
    attempt_until(whole, Phase.DUMP)
    whole.store()
    whole.nodes["node-2"].workers.clear()
    whole.new_leader()
    assert {(o.node, o.worker) for o in sent(whole, Phase.UNDO)} == {("node-1", 0), ("node-2", 1)}


def test_whoever_comes_late_to_an_heir_has_the_whole_time_for_its_undo(whole: World) -> None:
    attempt_until(whole, Phase.DUMP)
    whole.store()
    whole.nodes["node-2"].attached = False
    whole.new_leader()
    whole.answer_all()
    whole.tick(whole.policy.adopt_s - 1)
    whole.attach("node-2")
    (order,) = sent(whole, Phase.UNDO)
    assert order.deadline_s == whole.policy.undo_s
    whole.tick(whole.policy.undo_s - 1)
    assert attempt_state(whole) is A.ABORTING
    whole.settle()
    assert attempt_state(whole) is A.ABORTED
    assert whole.attempts["a1"].owed == ()


def test_an_undo_that_failed_is_owed(whole: World) -> None:
    attempt_until(whole, Phase.DUMP)
    whole.event(events.AbortRequested("a1", "enough"))
    order = sent(whole, Phase.UNDO)[1]
    whole.orders.remove(order)
    whole.event(whole.nodes["node-2"].fail(order, "the tree cannot be seen"))
    whole.settle()
    assert whole.attempts["a1"].owed == (1,)
    assert "worker 1 on node-2 could not be undone: the tree cannot be seen" in (
        whole.attempts["a1"].reason
    )


def test_the_oldest_debts_are_forgotten_above_the_limit(whole: World) -> None:
    whole.policy = replace(whole.policy, ended_limit=2)
    whole.new_leader()
    whole.settle()
    for name in ("a1", "a2", "a3"):
        attempt_until(whole, Phase.DUMP, name)
        whole.lose("node-2")
        whole.settle()
        whole.nodes["node-2"].attached = True
        decided = whole.control.handle(whole.nodes["node-2"].hello(), whole.now)
        told = [c.action for c in decided if isinstance(c, commands.SendOrder)]
        assert name in told, "but nobody undoes it: it is owed still"
        whole.tick(1000)
    assert told == ["a2", "a3"]
