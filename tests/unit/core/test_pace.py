"""Deadlines of a request: in all, of one phase, and whether the last checkpoints say it can fit."""

import pytest

from coordinator.core import events
from coordinator.core.model import AttemptState, Cut, Phase
from tests.support.core_checks import failure, sent, state, two_and_a_spare, until
from tests.support.core_world import World


@pytest.fixture
def world() -> World:
    return two_and_a_spare()


def ask(world: World, attempt: str, deadline_s: float = 0.0, **phases: float) -> None:
    named = tuple((Phase(phase), seconds) for phase, seconds in phases.items())
    asked = events.CheckpointRequested("llm", attempt, Cut.STEP, False, deadline_s, 0.0, named)
    world.event(asked)


def take(world: World, attempt: str, dump_s: float, persist_s: float) -> None:
    """A checkpoint whose dump and whose storing take so long."""
    until(world, Phase.DUMP, attempt)
    world.tick(dump_s)
    world.answer_all(Phase.DUMP)
    world.answer_all(Phase.RESUME)
    world.tick(persist_s)
    world.settle()
    assert state(world, attempt) is AttemptState.COMMITTED


def refusal(world: World, attempt: str) -> str:
    return world.refused[attempt].failure.what if attempt in world.refused else ""


def test_a_phase_may_have_a_deadline_of_its_own(world: World) -> None:
    ask(world, "a1", HOLD=2.5, DUMP=300.0)
    world.store()
    assert {o.deadline_s for o in sent(world, Phase.HOLD)} == {2.5}
    assert {o.hold_s for o in sent(world, Phase.HOLD)} == {2.5 + world.policy.margin_s}
    world.answer_all()
    assert {o.deadline_s for o in sent(world, Phase.PARK)} == {world.policy.park_s}
    world.answer_all()
    assert {o.deadline_s for o in sent(world, Phase.DUMP)} == {300.0}
    world.tick(299)
    assert state(world) is AttemptState.DUMPING
    world.tick(1)
    assert "DUMP was not answered within 300.0 s" in failure(world).what


@pytest.mark.parametrize(
    ("phase", "seconds"),
    [("RESTORE", 1.0), ("UNDO", 1.0), ("DUMP", 0.0), ("DUMP", -1.0), ("DUMP", float("inf"))],
)
def test_a_deadline_that_makes_no_sense_is_refused(
    world: World, phase: str, seconds: float
) -> None:
    ask(world, "a1", **{phase: seconds})
    assert world.refused["a1"].failure.kind == "BadRequest"
    assert phase in refusal(world, "a1")
    assert not world.writes


def test_what_cannot_fit_is_refused_at_once_with_the_numbers(world: World) -> None:
    take(world, "a1", 20, 40)
    take(world, "a2", 25, 45)
    ask(world, "a3", 30.0)
    assert world.refused["a3"].failure.kind == "NotReady"
    assert "by the last 2 checkpoints of llm: they took 60.0 to 70.0 s, and 30 s are allowed" in (
        refusal(world, "a3")
    )
    assert "--deadline" in world.refused["a3"].failure.advice
    assert world.control.attempt("a3") is None
    assert not world.writes
    ask(world, "a4", 61.0)
    assert refusal(world, "a4") == "", "the fastest of them would have fitted"


def test_one_slow_checkpoint_does_not_refuse_all_later_ones(world: World) -> None:
    take(world, "a1", 20, 40)
    take(world, "a2", 25, 45)
    for attempt in ("a3", "a4"):
        ask(world, attempt, 30.0)
        assert world.refused[attempt].failure.kind == "NotReady"
    ask(world, "a5", 30.0)
    assert refusal(world, "a5") == ""


def test_one_phase_that_cannot_fit_is_named(world: World) -> None:
    take(world, "a1", 20, 40)
    ask(world, "a2", DUMP=10.0)
    assert "by the last checkpoint of llm: DUMP took 20.0 s, and 10 s are allowed for it" in (
        refusal(world, "a2")
    )


def test_only_checkpoints_of_the_same_kind_count(world: World) -> None:
    take(world, "a1", 20, 40)
    world.checkpoint("llm", "a2", cut=Cut.FREEZE, deadline_s=5.0)
    assert refusal(world, "a2") == ""


def test_an_attempt_that_was_given_up_tells_nothing(world: World) -> None:
    until(world, Phase.DUMP)
    world.tick(500)
    world.settle()
    assert state(world) is AttemptState.ABORTED
    ask(world, "a2", 5.0)
    assert refusal(world, "a2") == ""


def test_a_new_leader_knows_how_long_they_took(world: World) -> None:
    take(world, "a1", 20, 40)
    world.new_leader()
    world.settle()
    ask(world, "a2", 30.0)
    assert "they took 60.0 s, and 30 s are allowed" in refusal(world, "a2")
