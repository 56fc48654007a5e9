"""Faults planted into the core: what is checked from outside finds each, without the core's help.

Each plant takes one safeguard away, and the core's own assertion of it as well. The same story must
be sound without the plant, and a violation of an invariant with it.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import pytest

from coordinator.core import (
    aborting,
    action,
    adoption,
    arrivals,
    committing,
    releasing,
    snapshot,
)
from coordinator.core.errors import BugError
from coordinator.core.events import AbortRequested, NodeLost, TimePassed
from coordinator.core.model import AttemptState, Phase, RestoreState
from tests.support.core_checks import sent, two_and_a_spare, until
from tests.support.core_invariants import Invariants, check_ends
from tests.support.core_restores import half_lost_world
from tests.support.core_restores import until as restore_until
from tests.support.core_world import World

Patch = pytest.MonkeyPatch


REQUIRE_CUT, REQUIRE_STORED = committing.require_cut, committing.require_stored


def nothing(*_: Any, **__: Any) -> None:
    """In place of an assertion."""


# -- stories ---------------------------------------------------------------------------------------


def watched(world: World) -> World:
    Invariants(world)
    return world


def a_checkpoint_of_which_one_comes_late() -> None:
    world = watched(two_and_a_spare())
    until(world, Phase.DUMP)
    world.answer(sent(world, Phase.DUMP)[0])
    world.settle()
    check_ends(world)
    assert world.snapshots["a1"]


def a_coordinator_that_stood_still() -> None:
    """Both had dumped; their holds ran out before the coordinator read that."""
    world = watched(two_and_a_spare())
    until(world, Phase.DUMP)
    orders = sent(world, Phase.DUMP)
    answers = [world.nodes[o.node].carry_out(o) for o in orders]
    world.orders.clear()
    world.now += orders[0].hold_s
    world.run_out()
    for answer in answers:
        world.event(answer)
    world.event(TimePassed())
    world.settle()
    check_ends(world)
    assert "a1" not in world.snapshots


def a_node_that_was_lost_while_storing() -> None:
    world = watched(two_and_a_spare())
    until(world, Phase.PERSIST)
    world.store()
    world.answer_all(Phase.RESUME)
    world.answer(sent(world, Phase.PERSIST)[0])
    world.nodes["node-2"].attached = False
    world.orders = [o for o in world.orders if o.node != "node-2"]
    world.event(NodeLost("node-2", "s1", "power cut"))
    world.settle()
    assert "a1" not in world.snapshots
    world.new_leader()
    world.settle()
    world.attach("node-2", new_session=True)
    world.settle()
    check_ends(world)
    assert not world.attempts["a1"].owed


def a_lost_node_with_held_images() -> None:
    """Lost after it had stored and before it heard RESUME; it is back after the commit."""
    world = watched(two_and_a_spare())
    until(world, Phase.PERSIST)
    world.answer(next(o for o in sent(world, Phase.PERSIST) if o.worker == 1))
    world.lose("node-2")
    world.settle()
    assert world.snapshots["a1"]
    world.attach("node-2")
    world.settle()
    check_ends(world)


def an_abort_after_the_cut_and_a_new_leader() -> None:
    world = watched(two_and_a_spare())
    until(world, Phase.PERSIST)
    world.store()
    for node in world.nodes.values():
        node.attached = False  # the orders to undo are lost with the streams
    world.event(AbortRequested("a1", "not now"))
    world.store()
    world.new_leader()
    for name in world.nodes:
        world.attach(name)
    world.settle()
    assert world.attempts["a1"].state is AttemptState.ABORTED, "it was given up, and that is kept"


def a_release_in_the_middle_of_which_the_leader_dies() -> None:
    world = watched(half_lost_world())
    restore_until(world, Phase.RELEASE)
    world.answer(sent(world, Phase.RELEASE)[0])
    world.new_leader()
    world.settle()
    check_ends(world)
    assert world.restores["r1"].state is RestoreState.RUNNING


# -- plants ----------------------------------------------------------------------------------------


def one_vote_missing(patch: Patch) -> None:
    def complete(self: action.Round) -> bool:
        enough = 1 if self.phase is Phase.DUMP else 0
        return len(self.awaited) <= enough and not self.whom

    patch.setattr(action.Round, "complete", property(complete))
    patch.setattr(committing, "require_cut", nothing)


def hold_ignored(patch: Patch) -> None:
    opened = action.Action.open_round

    def open_round(self: Any, *arguments: Any, **named: Any) -> action.Round:
        made = opened(self, *arguments, **named)
        made.held_until = self.held_until = action.FOREVER
        return made

    patch.setattr(action.Action, "open_round", open_round)
    patch.setattr(action.Action, "order", _with_hold(action.Action.order))
    patch.setattr(committing, "require_cut", nothing)


def _with_hold(order: Callable[..., Any]) -> Callable[..., Any]:
    def held(self: Any, member: Any, sent: Any, now: float, **detail: Any) -> Any:
        return replace(order(self, member, sent, now, **detail), hold_s=125.0)

    return held


def commit_without_everything(patch: Patch) -> None:
    def complete(self: action.Round) -> bool:
        enough = 1 if self.phase is Phase.PERSIST else 0
        return len(self.awaited) <= enough and not self.whom

    patch.setattr(action.Round, "complete", property(complete))
    patch.setattr(committing, "require_stored", nothing)
    patch.setattr(snapshot, "check_whole", nothing)


def debts_forgotten(patch: Patch) -> None:
    patch.setattr(action.Action, "not_undone", lambda self: ())


def images_of_a_snapshot_deleted(patch: Patch) -> None:
    patch.setattr(arrivals, "may_be_kept", lambda ended: False)


def abort_not_recorded(patch: Patch) -> None:
    begin = aborting.abort

    def abort(a: Any, failure: Any, now: float) -> Any:
        a.cut_recorded = False
        return begin(a, failure, now)

    patch.setattr(aborting, "abort", abort)


def released_before_that_is_recorded(patch: Patch) -> None:
    def at_once(r: Any, now: float, why: str) -> Any:
        r.released = True
        round_of = r.open_round(Phase.RELEASE, r.policy.release_s, now)
        r.move(RestoreState.RELEASING, why)
        return [*r.phase_orders(round_of, now), r.announce(now)]

    patch.setattr(releasing, "_record_release", at_once)


def heir_that_guesses(patch: Patch) -> None:
    """It takes whatever it finds RELEASING for a restore that has failed."""
    take = adoption.Heir.take

    def guess(self: adoption.Heir, record: Any) -> Any:
        state = getattr(record, "restore", "") and RestoreState.CLEARING
        return take(self, replace(record, state=state) if state else record)

    patch.setattr(adoption.Heir, "take", guess)


@dataclass(frozen=True)
class Plant:
    plant: Callable[[Patch], None]
    story: Callable[[], None]
    finds: str  # part of what the check says


PLANTS = (
    Plant(one_vote_missing, a_checkpoint_of_which_one_comes_late, "2: cut, and worker 1"),
    Plant(hold_ignored, a_coordinator_that_stood_still, "2: "),
    Plant(commit_without_everything, a_checkpoint_of_which_one_comes_late, "1: not all stored"),
    Plant(debts_forgotten, a_node_that_was_lost_while_storing, "left its images"),
    Plant(images_of_a_snapshot_deleted, a_lost_node_with_held_images, "1: the images"),
    Plant(abort_not_recorded, an_abort_after_the_cut_and_a_new_leader, "that is kept"),
    Plant(
        released_before_that_is_recorded,
        a_release_in_the_middle_of_which_the_leader_dies,
        "RELEASE while CLEARING is recorded",
    ),
    Plant(heir_that_guesses, a_release_in_the_middle_of_which_the_leader_dies, "RUNNING"),
)


@pytest.mark.parametrize("story", {p.story: None for p in PLANTS}, ids=lambda s: s.__name__)
def test_the_story_is_sound(story: Callable[[], None]) -> None:
    story()


@pytest.mark.parametrize("planted", PLANTS, ids=lambda p: p.plant.__name__)
def test_the_plant_is_found(planted: Plant, monkeypatch: Patch) -> None:
    planted.plant(monkeypatch)
    with pytest.raises(AssertionError, match=planted.finds):
        planted.story()


@pytest.mark.parametrize("plant", [one_vote_missing, commit_without_everything])
def test_the_cores_own_assertions_find_them_too(
    plant: Callable[[Patch], None], monkeypatch: Patch
) -> None:
    with monkeypatch.context() as patch:
        plant(patch)
        patch.setattr(committing, "require_cut", REQUIRE_CUT)
        patch.setattr(committing, "require_stored", REQUIRE_STORED)
        with pytest.raises(BugError, match=r"without workers \[1\]"):
            a_checkpoint_of_which_one_comes_late()
