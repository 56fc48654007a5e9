"""The door: sessions, nodes, views, the journal, and the work done per event."""

import time
from dataclasses import replace

import pytest

from coordinator.core import commands, drain_events, events, health_events
from coordinator.core.errors import BadRequest, BugError, IllegalEvent, StoreError
from coordinator.core.model import AttemptState, Cut, JobRecord, RestoreState
from coordinator.core.policy import Policy
from tests.support.core_checks import two_and_a_spare
from tests.support.core_shims import Node, Worker, facts
from tests.support.core_world import World


@pytest.fixture
def world() -> World:
    """Two nodes with a worker each."""
    made = World()
    for name in ("node-1", "node-2"):
        made.node(Node(facts(name)))
    made.start("llm", ["node-1", "node-2"])
    return made


def test_events_of_an_older_session_are_ignored_with_a_reason(world: World) -> None:
    world.attach("node-2", new_session=True)
    before = world.control.nodes()
    for event in (
        events.NodeLost("node-2", "s1", "late news"),
        events.NodeLeft("node-2", "s1", "late news"),
        events.NodeReported("node-2", "s1", ()),
        events.NodeLost("node-9", "s1", "of a stranger"),
    ):
        assert world.event(event) == []
        assert world.control.story()[-1].ignored
        assert "session s1, which is not its present one" in world.control.story()[-1].reason
    assert world.control.nodes() == before


def test_what_a_lost_node_says_is_ignored(world: World) -> None:
    world.checkpoint("llm", "a1")
    world.store()
    order = world.orders[1]
    answer = world.nodes["node-2"].carry_out(order)
    world.lose("node-2")
    assert world.event(answer) == []
    assert world.event(events.WorkerExited("node-2", "llm", 1, 0, 1)) == []
    assert world.event(events.NodeReported("node-2", "s1", ())) == []
    assert world.control.story()[-1].reason == "node-2 is lost already"


def test_views_show_nodes_and_jobs_as_they_are(world: World) -> None:
    view = world.control.jobs()[0]
    assert view.job == JobRecord("llm", 2, 2, 1, "")
    assert (view.state, view.nodes, view.step) == ("running", ("node-1", "node-2"), 11)
    world.checkpoint("llm", "a1")
    assert (world.control.jobs()[0].state, world.control.jobs()[0].action) == (
        "checkpointing",
        "a1",
    )
    world.settle()
    world.lose("node-2", "power cut")
    view = world.control.jobs()[0]
    assert (view.state, view.nodes, view.job.latest) == ("incomplete", ("node-1",), "a1")
    lost = world.control.nodes()[1]
    assert (lost.facts.node, lost.state, lost.reason) == ("node-2", "lost", "power cut")
    world.event(events.WorkerExited("node-1", "llm", 0, 0, 0))
    assert world.control.jobs()[0].state == "exited"


def test_a_job_is_known_from_the_store_before_any_worker_attaches() -> None:
    world = World()
    world.event(events.JobLoaded(JobRecord("llm", 2, 2, 3, "a7")))
    view = world.control.jobs()[0]
    assert (view.state, view.job.incarnation, view.job.latest) == ("unknown", 3, "a7")
    node = Node(facts("node-1"))
    node.workers[("llm", 0)] = Worker("llm", 0, 2, 2, {0: 5}, incarnation=2)
    world.node(node)
    assert not node.workers, "fenced: of an older incarnation"


def test_a_worker_that_is_gone_from_a_report_is_gone_from_the_job(world: World) -> None:
    world.nodes["node-2"].workers.clear()
    world.report("node-2")
    world.checkpoint("llm", "a1")
    assert "worker 1 is on no node" in world.refused["a1"].failure.what


def test_the_story_tells_every_decision_about_one_action(world: World) -> None:
    world.checkpoint("llm", "a1")
    world.settle()
    story = world.control.story("a1")
    states = list(dict.fromkeys(d.state for d in story if not d.ignored))
    assert states == ["ADMITTING", "HOLDING", "PARKING", "DUMPING", "PERSISTING", "COMMITTING",
                      "COMMITTED"]  # fmt: skip
    assert all(d.reason and d.cause for d in story)
    word = world.control.last_word("a1")
    assert word is not None
    assert word.last
    assert word.snapshot == world.snapshots["a1"]


def test_memory_is_bounded() -> None:
    world = World(Policy(journal_limit=50, ended_limit=3, lost_limit=2))
    for number in range(1, 6):
        world.node(Node(facts(f"node-{number}")))
    world.start("llm", ["node-1"])
    for number in range(6):
        world.checkpoint("llm", f"a{number}")
        world.settle()
    assert [a.attempt for a in world.control.attempts()] == ["a3", "a4", "a5"]
    assert world.control.last_word("a2") is None
    assert len(world.control.story()) == 50
    for number in (2, 3, 4, 5):
        world.lose(f"node-{number}")
    assert [n.facts.node for n in world.control.nodes()] == ["node-1", "node-4", "node-5"]


def test_a_request_that_comes_twice_is_one_request(world: World) -> None:
    world.checkpoint("llm", "a1")
    assert world.checkpoint("llm", "a1") == []
    world.settle()
    assert world.checkpoint("llm", "a1") == []
    assert "a1" not in world.refused


def test_senseless_requests_are_refused(world: World) -> None:
    for number, deadline_s in enumerate((-1.0, float("inf"), float("nan"))):
        world.checkpoint("llm", f"a{number}", deadline_s=deadline_s)
        assert world.refused[f"a{number}"].failure.kind == "BadRequest"
    with pytest.raises(BadRequest):
        Policy(park_s=0)


def test_an_event_of_no_known_kind_is_illegal(world: World) -> None:
    class Unheard(events.Event):
        pass

    with pytest.raises(IllegalEvent):
        world.control.handle(Unheard(), 0.0)


def test_every_event_has_a_door() -> None:
    from coordinator.core.control import _DOOR

    told = [each for m in (events, drain_events, health_events) for each in vars(m).values()]
    leaves = {kind for kind in told if isinstance(kind, type)}
    concrete = {
        kind
        for kind in leaves
        if issubclass(kind, events.Event) and kind not in (events.Event, events.OrderAnswered)
    }
    assert concrete == set(_DOOR)


def test_a_new_leader_remembers_what_had_ended(world: World) -> None:
    world.checkpoint("llm", "a1")
    world.settle()
    world.new_leader()
    record = world.control.attempt("a1")
    assert record is not None
    assert record.state is AttemptState.COMMITTED
    assert world.control.jobs()[0].job.latest == "a1"
    assert world.control.next_wakeup() is None
    assert RestoreState.RUNNING not in {r.state for r in world.control.restores()}


def test_validate_notices_a_broken_core(world: World) -> None:
    world.checkpoint("llm", "a1")
    world.store()
    world.control._cluster.nodes["node-2"].state = "lost"
    with pytest.raises(BugError, match="out of reach"):
        world.control.validate()


# -- the work done per event -----------------------------------------------------------------------


def run_attempt(workers: int) -> tuple[int, float]:
    """Entries announced and processor seconds for one attempt of so many workers."""
    world = World()
    names = [f"node-{number}" for number in range(workers)]
    for name in names:
        world.nodes[name] = Node(facts(name), attached=True)
    for number, name in enumerate(names):
        made = Worker("llm", number, workers, workers, {number: 10}, incarnation=1)
        world.nodes[name].workers[("llm", number)] = made
    handle = world.control.handle
    began = time.process_time()
    for name in names:
        handle(world.nodes[name].hello(), 0.0)
    entries = 0

    def count(command: commands.Command) -> None:
        nonlocal entries
        entries += len(command.awaited) if isinstance(command, commands.Announce) else 1

    world.watchers.append(count)
    decided = handle(events.CheckpointRequested("llm", "a1", Cut.STEP, False, 0.0, 0.0), world.now)
    world.carry_out(decided)
    for _ in range(10):
        while world.writes:
            write = world.writes.pop(0)
            done: events.Event = (
                events.AttemptStored("a1", write.record.state)
                if isinstance(write, commands.PutAttempt)
                else events.SnapshotCommitted("a1")
            )
            world.carry_out(handle(done, 0.0))
        orders, world.orders = world.orders, []
        for order in orders:
            world.carry_out(handle(world.nodes[order.node].carry_out(order), 0.0))
    took = time.process_time() - began
    assert world.last["a1"].state == AttemptState.COMMITTED
    return entries, took


@pytest.mark.alone  # processor time is counted
def test_an_attempt_costs_the_same_per_worker_however_many_there_are() -> None:
    few, _ = run_attempt(256)
    many, took = run_attempt(4096)
    assert many <= few * 16 * 1.3, "announcements or orders grow faster than the job"
    assert took < 6.0, "4,096 workers took 1.1 s of processor time when this was written"


def run_trouble(workers: int) -> float:
    """Processor seconds when all nodes are lost in the middle, and all come back."""
    world = World()
    handle, names = world.control.handle, [f"node-{number}" for number in range(workers)]
    for number, name in enumerate(names):
        world.nodes[name] = Node(facts(name), attached=True)
        made = Worker("llm", number, workers, workers, {number: 10}, incarnation=1)
        world.nodes[name].workers[("llm", number)] = made
    began = time.process_time()
    for name in names:
        handle(world.nodes[name].hello(), 0.0)
    handle(events.CheckpointRequested("llm", "a1", Cut.STEP, False, 0.0, 0.0), 0.0)
    handle(events.AttemptStored("a1", "ADMITTING"), 0.0)
    for name in names:
        handle(events.NodeLost(name, "s1", "its carrier is gone"), 1.0)
    handle(events.CheckpointRequested("llm", "a2", Cut.STEP, False, 0.0, 0.0), 2.0)
    for name in names:
        world.nodes[name].workers.clear()
        handle(world.nodes[name].hello(), 3.0)
    handle(events.CheckpointRequested("llm", "a3", Cut.STEP, False, 0.0, 0.0), 4.0)
    for number, name in enumerate(names):
        handle(events.Undone(1, name, "llm", number, "a1"), 5.0)
    took = time.process_time() - began
    record = world.control.attempt("a1")
    assert record is not None
    assert (record.state, record.owed) == (AttemptState.ABORTED, ())
    return took


@pytest.mark.alone  # processor time is counted
def test_the_loss_and_return_of_all_costs_the_same_per_worker() -> None:
    few = min(run_trouble(1024) for _ in range(3))
    many = min(run_trouble(4096) for _ in range(2))
    assert many < few * 10, f"{few:.2f} s for 1,024, {many:.2f} s for 4,096"


# -- what of the store cannot be used --------------------------------------------------------------


def test_damage_is_shown_with_its_job_and_stops_nobody_else() -> None:
    world = two_and_a_spare()
    world.checkpoint("llm", "a1")
    world.settle()
    bad = StoreError("the value of /allstop/jobs/gpt in the store is not text").at(job="gpt")
    odd = StoreError("the value of /allstop/jobs/llm/attempts/a9 is damaged").at(job="llm")
    world.new_leader(damaged=(bad, odd))
    world.settle()
    gpt, llm = world.control.jobs()
    assert (gpt.job.job, gpt.state, gpt.problems) == ("gpt", "damaged", (bad.what,))
    assert (llm.job.job, llm.state, llm.problems) == ("llm", "running", (odd.what,))
    world.checkpoint("llm", "a2")
    world.settle()
    assert world.snapshots["a2"]


def test_a_record_of_a_later_epoch_is_left_alone_and_shown() -> None:
    world = two_and_a_spare()
    world.checkpoint("llm", "a1")
    world.settle()
    world.attempts["a0"] = replace(
        world.attempts["a1"], attempt="a0", state=AttemptState.PERSISTING, epoch=2**40
    )
    world.new_leader()
    world.settle()
    assert world.control.attempt("a0") is None
    assert "a0 is of epoch 1099511627776" in world.control.jobs()[0].problems[0]
    world.checkpoint("llm", "a2")
    world.settle()
    assert world.snapshots["a2"]
