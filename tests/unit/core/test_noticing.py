"""Shims that leave on purpose, and what they were told before: the whole core over time."""

from __future__ import annotations

import pytest

from coordinator.core import events
from coordinator.core.drain_events import NoticeGiven, NoticeKind
from coordinator.core.drain_records import DrainState
from coordinator.core.job_policy import JobHistory, JobPolicy, OnFailure, RecoveryState, When
from coordinator.core.model import AttemptState, Phase, RestoreState
from tests.support import core_drains
from tests.support.core_checks import answer_until, two_and_a_spare
from tests.support.core_drains import drain, places, serve, state
from tests.support.core_world import World

POLICY = JobPolicy(
    "llm", When.AUTO, mtbf_s=3600.0, least_s=3000.0, on_failure=OnFailure.RESTORE, wait_s=60.0
)
K = NoticeKind
TERM = "the shim was told SIGTERM"


@pytest.fixture
def world() -> World:
    """A job of two workers on node-1 and node-2 with a snapshot, a spare, and a policy."""
    made = two_and_a_spare()
    made.event(events.PolicyChanged(POLICY))
    made.tick(2.0)
    made.checkpoint("llm", "a1")
    made.settle()
    made.tick(2.0)
    made.histories.clear()
    return made


def tell(world: World, kind: NoticeKind, node: str = "node-2", deadline_s: float = 60.0) -> None:
    world.event(NoticeGiven(node, kind, deadline_s, TERM))


def ends(world: World, node: str, code: int) -> None:
    """The worker on a node ends."""
    for job, number in list(world.nodes[node].workers):
        gone = world.nodes[node].workers.pop((job, number))
        world.event(events.WorkerExited(node, job, number, gone.incarnation, code))


def leave(world: World, node: str = "node-2", *, announced: bool = True) -> None:
    """A shim that is told to end: it says so, ends its workers, and says Goodbye."""
    if announced:
        tell(world, K.END, node, 0.0)
    ends(world, node, -15)
    world.lose(node, TERM, politely=True)


def go_on(world: World, seconds: float = 5.0) -> None:
    """Time passes, and what is asked for is done; shims go on telling how those are that ended."""
    until = world.now + seconds
    while world.now < until:
        serve(world)
        world.settle()
        world.tick(0.5)


def failures(world: World) -> int:
    kept: JobHistory | None = world.histories.get("llm")
    return kept.failures + sum(n.failures for n in kept.nodes) if kept is not None else 0


def story(world: World) -> list[str]:
    return [line.text for line in world.control.recovery("llm").story]


@pytest.mark.parametrize("others", ["live", "crash first", "crash later"])
def test_a_worker_that_is_taken_away_comes_back_elsewhere_once_and_nothing_failed(
    world: World, others: str
) -> None:
    if others == "crash first":  # its word came before the end of the one that it depends on
        tell(world, K.END, deadline_s=0.0)
        ends(world, "node-1", 1)
    leave(world)
    if others == "crash later":
        ends(world, "node-1", 1)
    go_on(world, 20.0)
    assert places(world) == ["node-1", "node-3"]
    (restore,) = world.control.restores()
    assert restore.state is RestoreState.RUNNING
    assert restore.cause == f"node-2 was taken away, {TERM}"
    assert failures(world) == 0
    recovery = world.control.recovery("llm")
    assert (recovery.state, recovery.crashes) == (RecoveryState.WATCHING, 0)
    assert sum("the run was ended on purpose" in text for text in story(world)) == 1
    assert not any("the run has ended at step" in text for text in story(world))

    world.checkpoint("llm", "a9")
    world.settle()
    ends(world, "node-3", 1)
    go_on(world, 20.0)
    assert places(world) == ["node-1", "node-3"]
    assert failures(world) == 1, "a later crash is one again"


def test_without_a_word_before_its_end_it_counts(world: World) -> None:
    leave(world, announced=False)
    go_on(world, 20.0)
    assert failures(world) == 1


def test_a_run_that_has_failed_is_not_excused_by_who_leaves_after_that(world: World) -> None:
    ends(world, "node-1", 1)
    leave(world)
    go_on(world, 20.0)
    assert failures(world) == 1
    assert any("the run has ended at step" in text for text in story(world))


def test_a_node_that_is_lost_beside_one_that_leaves_has_failed(world: World) -> None:
    leave(world)
    world.lose("node-1")
    world.attach("node-2", new_session=True)
    go_on(world, 20.0)
    kept = world.histories["llm"]
    assert {node.node: node.failures for node in kept.nodes} == {"node-1": 1, "node-2": 0}


def test_a_job_all_of_whose_shims_are_told_to_end_is_finished(world: World) -> None:
    leave(world, "node-1")
    ends(world, "node-2", 1)  # without its peer
    world.tick(3.0)  # one after the other
    leave(world, "node-2")
    go_on(world, 20.0)
    assert world.control.recovery("llm").state is RecoveryState.FINISHED
    assert (world.control.restores(), failures(world)) == ((), 0)


def test_without_a_policy_nothing_is_restored(world: World) -> None:
    world.event(events.PolicyChanged(JobPolicy("llm")))
    leave(world)
    go_on(world, 20.0)
    assert world.control.restores() == ()


def test_jobs_are_saved_and_stopped_once_however_often_it_is_told(world: World) -> None:
    tell(world, K.STOP)
    (asked,) = world.due
    assert (asked.stop, asked.deadline_s, asked.reason) == (True, 60.0, TERM)
    assert serve(world) == 1
    tell(world, K.STOP, "node-1")
    tell(world, K.STOP)
    assert not world.due, "the attempt has it"
    world.settle()
    (_, attempt) = world.control.attempts()
    assert (attempt.state, attempt.stop) == (AttemptState.COMMITTED, True)
    core_drains.go_on(world, 20.0)
    assert world.control.recovery("llm").state is RecoveryState.FINISHED
    assert (world.notices_refused, failures(world)) == ([], 0)


def test_a_job_that_is_stopped_and_restored_has_not_failed(world: World) -> None:
    """Its workers are killed for that, and their shims say so."""
    world.checkpoint("llm", "a2", stop=True)
    world.settle()
    for name in ("node-1", "node-2"):
        ends(world, name, -9)
    world.restore("llm", "r1", "a2")
    world.settle()
    assert places(world) == ["node-1", "node-2"]
    assert failures(world) == 0
    go_on(world, 5.0)
    ends(world, "node-1", 1)
    go_on(world, 20.0)
    assert failures(world) == 1, "a later crash is one"


def test_one_that_something_else_has_is_stopped_when_it_is_told_again(world: World) -> None:
    world.checkpoint("llm", "a2")
    tell(world, K.STOP)
    assert not world.due
    world.settle()
    tell(world, K.STOP)
    assert [ask.stop for ask in world.due] == [True]


def test_what_there_is_no_time_for_is_refused_at_once_and_the_shim_is_told_why() -> None:
    world = two_and_a_spare()
    world.checkpoint("llm", "a1")
    for phase in (Phase.HOLD, Phase.PARK, Phase.DUMP, Phase.PERSIST):
        answer_until(world, phase)
        world.tick(2.0)
    world.settle()
    tell(world, K.STOP, deadline_s=5.0)
    serve(world)
    (told,) = world.notices_refused
    assert (told.node, told.kind) == ("node-2", K.STOP)
    assert told.reason.startswith("job llm: it cannot end in the time allowed")
    assert places(world) == ["node-1", "node-2"]


def test_a_drain_that_is_refused_is_told_to_the_shim_that_asked(world: World) -> None:
    world.lose("node-3")
    tell(world, K.DRAIN)
    (ask,) = world.notices
    assert ask.session == "s1"
    serve(world)
    assert [told.kind for told in world.notices_refused] == [K.DRAIN]
    assert [asked.notice for asked in world.due] == ["node-2"]


def test_a_node_that_goes_sooner_than_was_said_is_hurried(world: World) -> None:
    drain(world, deadline_s=600.0)
    world.store()
    tell(world, K.DRAIN, deadline_s=90.0)
    world.store()
    hurried = world.drains["node-2"].deadline_unix_s
    assert hurried == pytest.approx(1000.0 + world.now + 90.0)
    tell(world, K.DRAIN, deadline_s=90.5)
    tell(world, K.DRAIN, deadline_s=300.0)
    tell(world, K.DRAIN, deadline_s=0.0)
    assert not world.writes
    core_drains.go_on(world)
    assert state(world) is DrainState.DRAINED
