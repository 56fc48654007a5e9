"""Every phase given up for every cause: who is told, when it is over, and what the record says.

Whoever is left of the other workers is ordered UNDO in the very step that learns of the cause, and
the attempt ends within the phase's deadline and that of UNDO, with one sentence that names whom.
"""

from dataclasses import replace

import pytest

from coordinator.core import commands, events
from coordinator.core.model import AttemptRecord, AttemptState, Failure, Phase
from tests.support.core_causes import Cause, Causes, name_of, told
from tests.support.core_checks import running, sent, state, two_and_a_spare, until
from tests.support.core_world import World

S = AttemptState
HELD = (Phase.HOLD, Phase.PARK, Phase.GPU_LOCK, Phase.GPU_SAVE, Phase.DUMP)
DEADLINES = {
    Phase.HOLD: "hold_s",
    Phase.PARK: "park_s",
    Phase.GPU_LOCK: "gpu_lock_s",
    Phase.GPU_SAVE: "gpu_save_s",
    Phase.DUMP: "dump_s",
    Phase.PERSIST: "persist_s",
}


@pytest.fixture
def world() -> World:
    """Two nodes with one worker of two ranks each, which have devices, and a spare."""
    made = two_and_a_spare()
    for name in ("node-1", "node-2"):
        for worker in made.nodes[name].workers.values():
            worker.gpu = True
        made.report(name)
    return made


def reach(world: World, phase: Phase) -> None:
    """Bring the attempt to where everyone was ordered to a phase, and nobody has answered."""
    until(world, phase)
    world.store()


def let_go(world: World) -> None:
    world.nodes["node-2"].workers[("llm", 1)].held_until = world.now
    world.run_out()


CAUSES = Causes("a1", "node-2", 1, DEADLINES, let_go)
ABOUT = {
    CAUSES.deadline: ("worker 1", "node-2"),
    CAUSES.death_of_a_rank: ("worker 1", "node-2", "signal 9"),
    CAUSES.death_of_a_shim: ("worker 1", "node-2", "its stream broke"),
    CAUSES.failed_driver: ("worker 1", "rank 2", "node-2", "it said no"),
    CAUSES.timer_of_a_shim: ("worker 1", "node-2", "its own timer"),
    CAUSES.operators_abort: ("wrong job",),
}
OUT_OF_REACH = (CAUSES.death_of_a_shim,)
CELLS = [
    (phase, cause)
    for phase in (*HELD, Phase.PERSIST)
    for cause in ABOUT
    # a worker that dies after the cut takes nothing away; see below
    if (phase, cause) != (Phase.PERSIST, CAUSES.death_of_a_rank)
]


def record(world: World) -> AttemptRecord:
    found = world.control.attempt("a1")
    assert found is not None
    return found


@pytest.mark.parametrize(("phase", "cause"), CELLS, ids=name_of)
def test_an_attempt_is_given_up(world: World, phase: Phase, cause: Cause) -> None:
    reach(world, phase)
    began = world.now
    decided = cause(world, phase)
    alive = {("node-1", 0, False)}
    if cause not in OUT_OF_REACH:
        alive.add(("node-2", 1, False))
    assert told(decided) == alive
    assert state(world) is S.ABORTING
    assert not [c for c in decided if isinstance(c, commands.CommitSnapshot)]
    undo_s = world.policy.with_devices().undo_s
    world.tick(undo_s - 1)
    assert state(world) is S.ABORTING, "device memory takes its time to be put back"
    world.tick(1)  # nobody answers
    took_s = world.now - began
    assert state(world) is S.ABORTED
    assert took_s <= getattr(world.policy, DEADLINES[phase]) + undo_s
    reason = record(world).reason
    assert reason.startswith(f"given up in {phase}: ")
    assert all(name in reason for name in ABOUT[cause]), reason
    failure = record(world).failure
    assert failure is not None
    assert (failure.job, failure.phase) == ("llm", phase)
    assert record(world).owed == (0, 1), "nobody has said that it was undone"
    world.settle()
    assert world.attempts["a1"].state is S.ABORTED
    assert world.attempts["a1"].reason == reason
    assert world.attempts["a1"].owed == (() if len(alive) == 2 else (0, 1)), "told late, but told"


@pytest.mark.parametrize(("phase", "cause"), CELLS, ids=name_of)
def test_everyone_left_runs_again_at_once(world: World, phase: Phase, cause: Cause) -> None:
    reach(world, phase)
    cause(world, phase)
    at = world.now
    world.settle()
    assert state(world) is S.ABORTED
    assert world.now == at, "no time was waited for"
    survivor = world.nodes["node-1"].workers[("llm", 0)]
    assert (survivor.state, survivor.held_by, survivor.parked) == ("running", "", False)
    assert not survivor.dumped
    world.tick(1000)
    world.attach("node-2", new_session=True)
    world.settle()
    assert running(world)
    assert not any(w.dumped for n in world.nodes.values() for w in n.workers.values())
    assert world.attempts["a1"].owed == ()
    assert "a1" not in world.snapshots
    world.checkpoint("llm", "a2")
    world.settle()
    assert state(world, "a2") is S.COMMITTED


@pytest.mark.parametrize("phase", [*HELD, Phase.PERSIST])
def test_a_new_leader_ends_it(world: World, phase: Phase) -> None:
    """Before the cut it is undone everywhere; after it, it is brought to its end."""
    reach(world, phase)
    world.new_leader()
    if phase is Phase.PERSIST:
        world.settle()
        assert state(world) is S.COMMITTED
        assert running(world)
        return
    assert {(o.node, o.worker, o.phase) for o in world.orders} == {
        ("node-1", 0, Phase.UNDO),
        ("node-2", 1, Phase.UNDO),
    }
    world.settle()
    assert state(world) is S.ABORTED
    assert running(world)
    assert "the leader of epoch 1 ended while a1 was ADMITTING or later, before its cut" in (
        record(world).reason
    )


# -- before anything is held, and after everything is stored ---------------------------------------


@pytest.mark.parametrize(
    ("event", "says"),
    [
        (events.WorkerExited("node-2", "llm", 1, 1, -9), ("worker 1", "node-2", "signal 9")),
        (events.NodeLost("node-2", "s1", "its stream broke"), ("worker 1", "node-2")),
        (events.AbortRequested("a1", "wrong job"), ("wrong job",)),
        (events.StoreRefused("a1", Failure("StoreError", "etcd said no")), ("etcd said no",)),
        (events.TimePassed(), ("the store",)),
    ],
    ids=lambda value: type(value).__name__,
)
def test_an_attempt_that_is_not_recorded_touches_nobody(
    world: World, event: events.Event, says: tuple[str, ...]
) -> None:
    world.checkpoint("llm", "a1")
    world.writes.clear()
    world.now += world.policy.admit_s if isinstance(event, events.TimePassed) else 0.0
    world.event(event)
    assert state(world) is S.ABORTED
    assert not world.orders
    assert all(name in record(world).reason for name in says), record(world).reason
    assert record(world).owed == ()


@pytest.mark.parametrize("definite", [True, False])
def test_a_refused_commit_gives_it_up(world: World, definite: bool) -> None:
    reach(world, Phase.PERSIST)
    world.answer_all()
    world.writes.clear()
    refused = Failure("StoreError", "the attempt was changed", definite=definite)
    decided = world.event(events.CommitRefused("a1", refused))
    assert told(decided) == {("node-1", 0, False), ("node-2", 1, False)}
    world.settle()
    assert record(world).reason.startswith("given up in COMMIT: the attempt was changed")
    assert world.attempts["a1"].keep is not definite


@pytest.mark.parametrize(
    "event",
    [
        events.WorkerExited("node-2", "llm", 1, 1, -9),
        events.NodeLost("node-2", "s1", "its stream broke"),
        events.AbortRequested("a1", "wrong job"),
        events.TimePassed(),
        events.StoreRefused("a1", Failure("StoreError", "etcd said no")),
    ],
    ids=lambda event: type(event).__name__,
)
def test_nothing_gives_it_up_once_it_is_being_committed(world: World, event: events.Event) -> None:
    reach(world, Phase.PERSIST)
    world.answer_all()
    world.now += world.policy.commit_s
    decided = world.event(event)
    assert told(decided) == set()
    assert state(world) is S.COMMITTING
    world.settle()
    assert state(world) is S.COMMITTED


def test_a_worker_that_dies_after_the_cut_takes_nothing_away(world: World) -> None:
    reach(world, Phase.PERSIST)
    answers = [world.nodes[o.node].carry_out(o) for o in sent(world, Phase.PERSIST)]
    world.orders = [o for o in world.orders if o.phase is Phase.RESUME and o.worker == 0]
    world.event(events.WorkerExited("node-2", "llm", 1, 1, -9, "Killed"))
    for answer in answers:
        world.event(answer)
    world.settle()
    assert state(world) is S.COMMITTED
    assert "worker 1 on node-2 exited with -9 after the cut" in record(world).reason


def test_a_node_that_comes_back_after_the_cut_is_told_to_go_on(world: World) -> None:
    """It was lost after its images were stored, before RESUME reached it: its worker stands."""
    reach(world, Phase.PERSIST)
    world.answer(next(o for o in sent(world, Phase.PERSIST) if o.worker == 1))
    CAUSES.death_of_a_shim(world, Phase.PERSIST)
    assert state(world) is S.PERSISTING
    assert world.nodes["node-2"].workers[("llm", 1)].held_by == "a1"
    world.attach("node-2")
    assert [(o.node, o.phase) for o in world.orders if o.node == "node-2"] == [
        ("node-2", Phase.RESUME)
    ]
    world.settle()
    assert state(world) is S.COMMITTED
    assert running(world)


def test_the_sentence_names_whom_the_shims_words_do_not(world: World) -> None:
    reach(world, Phase.DUMP)
    CAUSES.failed_driver(world, Phase.DUMP)
    world.settle()
    assert record(world).reason == (
        "given up in DUMP: it said no (worker 1, rank 2, node-2); the workers in reach run on"
    )


def test_an_attempts_policy_is_its_own(world: World) -> None:
    """The whole deadline caps each phase, whatever the policy allows."""
    world.policy = replace(world.policy, park_s=500.0)
    until(world, Phase.PARK, deadline_s=20.0)
    assert {o.deadline_s for o in sent(world, Phase.PARK)} == {20.0}
