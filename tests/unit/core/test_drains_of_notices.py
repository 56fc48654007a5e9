"""Drains that a shim's notice began, and notices that cannot be followed yet: over time."""

from __future__ import annotations

from dataclasses import replace

import pytest

from coordinator.core import commands, drain_events
from coordinator.core.drain_events import NoticeGiven, NoticeKind
from coordinator.core.drain_records import DrainState, DrainStep
from coordinator.core.model import Failure, Phase
from tests.support.core_checks import answer_until, two_and_a_spare
from tests.support.core_drains import (
    drain,
    go_on,
    notice,
    places,
    refused,
    replaced,
    saved,
    serve,
    state,
    undrain,
    unwritten,
)
from tests.support.core_shims import Node, facts
from tests.support.core_world import World

D = DrainState
K = NoticeKind
AWAY = Failure("StoreError", "etcd is away")


@pytest.fixture
def world() -> World:
    """A job of two workers on node-1 and node-2, and a spare, node-3."""
    return two_and_a_spare()


# -- the store is away -----------------------------------------------------------------------------


def test_a_drain_that_could_not_be_asked_for_is_told_again(world: World) -> None:
    notice(world)
    (ask,) = world.notices
    world.notices.clear()
    world.event(drain_events.DrainUnready("node-2", AWAY, ask.session))
    assert refused(world) == [(K.DRAIN, True)]
    notice(world)
    go_on(world)
    assert state(world) is D.DRAINED
    world.event(drain_events.DrainUnready("node-2", AWAY, ""))
    assert not refused(world), "no shim has asked for that"


def test_a_drain_that_could_not_be_recorded_is_told_again(world: World) -> None:
    notice(world)
    serve(world)
    unwritten(world)
    assert refused(world) == [(K.DRAIN, True)]
    assert state(world) is D.UNDRAINED
    notice(world)
    go_on(world)
    assert (state(world), places(world)) == (D.DRAINED, ["node-1", "node-3"])


def test_a_later_state_that_could_not_be_recorded_is_written_again(world: World) -> None:
    drain(world, "node-3")
    world.store()
    world.event(drain_events.UndrainRequested("node-3", "undrain"))
    unwritten(world)
    assert world.refused["undrain"].failure.kind == "StoreError"
    world.tick(1.5)
    world.store()
    assert not world.drains


# -- another shim ----------------------------------------------------------------------------------


@pytest.mark.parametrize("leader", ["the same", "another"])
def test_the_next_shim_of_that_name_takes_workers_again(world: World, leader: str) -> None:
    notice(world)
    go_on(world)
    assert (state(world), places(world)) == (D.DRAINED, ["node-1", "node-3"])
    world.attach("node-2")
    go_on(world, 2.0)
    assert state(world) is D.DRAINED, "it is the shim that was told to go"
    if leader == "another":
        world.lose("node-2")
        world.new_leader()
        go_on(world, 2.0)
        assert state(world) is D.DRAINED
    replaced(world)
    go_on(world, 2.0)
    assert state(world) is D.UNDRAINED
    assert not world.drains
    world.checkpoint("llm", "a9")
    world.settle()
    world.lose("node-3")
    world.restore("llm", "r9", "a9")
    world.settle()
    assert places(world) == ["node-1", "node-2"]


def test_one_whose_workers_live_on_is_on_the_machine_that_goes(world: World) -> None:
    notice(world)
    serve(world)
    world.store()
    world.attach("node-2", new_session=True)
    world.tick(1.5)
    assert state(world) is D.DRAINING


@pytest.mark.parametrize("how", ["alone", "joined", "joined at once"])
def test_what_an_operator_has_asked_for_holds_for_the_next_shim_too(world: World, how: str) -> None:
    if how != "alone":
        notice(world)
        serve(world)
    if how == "joined":
        world.store()
    drain(world)
    go_on(world)
    assert state(world) is D.DRAINED
    replaced(world)
    go_on(world, 2.0)
    assert state(world) is D.DRAINED
    assert world.drains["node-2"].session == ""


def test_a_shim_that_is_replaced_while_its_drain_is_recorded(world: World) -> None:
    notice(world)
    serve(world)
    replaced(world)
    world.tick(1.5)
    go_on(world, 2.0)
    assert state(world) is D.UNDRAINED


# -- called off, and wanted again ------------------------------------------------------------------


def between_two_tries(world: World) -> None:
    """Its drain is called off, and the job that it has stopped cannot be put back yet."""
    drain(world)
    world.store()
    world.tick(1.0)
    serve(world)
    answer_until(world, Phase.PERSIST)
    world.lose("node-3")
    world.answer_all()
    world.settle()
    world.lose("node-1")
    undrain(world)
    go_on(world, 3.0)
    assert state(world) is D.UNDRAINING
    assert not world.control.under_way()


def test_a_job_that_is_being_put_back_stays_in_a_record(world: World) -> None:
    between_two_tries(world)
    request = drain(world)
    assert world.refused[request].failure.kind == "Busy"
    (job,) = world.drains["node-2"].jobs
    assert (job.job, job.step) == ("llm", DrainStep.RETURNING)
    for name in ("node-1", "node-3"):
        world.attach(name, new_session=True)
    go_on(world, 30.0)
    assert (state(world), places(world)[1]) == (D.UNDRAINED, "node-2")
    drain(world)
    go_on(world, 10.0)
    assert state(world) is D.DRAINED


def test_a_notice_meanwhile_is_taken_after_that(world: World) -> None:
    between_two_tries(world)
    for name in ("node-1", "node-3"):
        world.attach(name, new_session=True)
    notice(world)
    serve(world)
    assert refused(world) == [(K.DRAIN, True)]
    for _ in range(40):
        notice(world)
        go_on(world, 1.0)
    assert (state(world), places(world)) == (D.DRAINED, ["node-1", "node-3"])


def test_called_off_and_wanted_again_at_once(world: World) -> None:
    first = drain(world, "node-3")
    world.store()
    world.tick(0.1)
    world.event(drain_events.UndrainRequested("node-3", "off"))
    second = drain(world, "node-3")
    assert first != second
    world.store_one()
    assert world.last["off"].state == "UNDRAINED"
    assert second not in world.last, "it is not recorded yet"
    world.event(drain_events.UndrainRequested("node-3", "off again"))
    assert world.refused["off again"].failure.kind == "Busy"
    world.store()
    assert world.last[second].state == "DRAINING"
    go_on(world, 2.0)
    assert state(world, "node-3") is D.DRAINED
    assert world.drains["node-3"].state is D.DRAINED


def test_an_earlier_drain_that_was_not_recorded_does_not_undo_a_new_one(world: World) -> None:
    drain(world, "node-3")
    world.store()
    world.tick(0.1)
    world.event(drain_events.UndrainRequested("node-3", "off"))
    (write,) = world.writes
    world.writes.clear()
    assert isinstance(write, commands.PutDrain)
    drain(world, "node-3")
    made = write.record
    world.event(drain_events.DrainUnstored(made.node, made.state, made.requested_unix_s, AWAY))
    world.tick(2.0)
    assert [each.record.state for each in world.writes if isinstance(each, commands.PutDrain)] == [
        D.DRAINING
    ]
    go_on(world, 2.0)
    assert state(world, "node-3") is D.DRAINED
    assert world.drains["node-3"].state is D.DRAINED


def test_less_time_than_was_said_counts_while_it_is_recorded(world: World) -> None:
    notice(world, deadline_s=600.0)
    serve(world)
    notice(world, deadline_s=90.0)
    drain(world, deadline_s=45.0, notice=True)
    world.store()
    assert world.drains["node-2"].deadline_unix_s == pytest.approx(1000.0 + world.now + 45.0)


# -- as things stand -------------------------------------------------------------------------------


def test_what_no_node_can_take_is_saved_once_and_moved_when_one_comes(world: World) -> None:
    world.lose("node-3")
    for _ in range(10):
        notice(world, deadline_s=3000.0)
        go_on(world, 3.0)
    assert set(refused(world)) == {(K.DRAIN, True)}
    assert saved(world) == 1
    assert state(world) is D.UNDRAINED
    world.node(Node(facts("node-4")))
    notice(world, deadline_s=3000.0)
    go_on(world)
    assert (state(world), places(world)) == (D.DRAINED, ["node-1", "node-4"])


def test_the_store_is_not_read_while_no_node_has_come(world: World) -> None:
    world.lose("node-3")
    notice(world)
    serve(world)
    notice(world)
    assert not world.notices
    assert refused(world) == [(K.DRAIN, True)] * 2
    world.attach("node-3", new_session=True)
    notice(world)
    assert len(world.notices) == 1


def test_another_notice_saves_again(world: World) -> None:
    world.lose("node-3")
    notice(world)
    go_on(world, 3.0)
    world.event(NoticeGiven("node-2", K.DRAIN, 60.0, "its shim was told SIGTERM"))
    go_on(world, 3.0)
    assert saved(world) == 2


def test_a_notice_is_judged_the_same_however_often_it_is_told(world: World) -> None:
    world.checkpoint("llm", "a1")
    for phase in (Phase.HOLD, Phase.PARK, Phase.DUMP, Phase.PERSIST):
        answer_until(world, phase)
        world.tick(2.0)
    world.settle()
    for _ in range(10):
        request = drain(world, deadline_s=5.0, notice=True)
        assert world.refused[request].failure.kind == "NotReady"
        go_on(world, 0.5)
    notice(world, deadline_s=5.0)
    serve(world)
    assert (K.DRAIN, False) in refused(world), "it does not get better"


def test_a_job_that_is_not_whole_is_waited_for_where_the_node_goes(world: World) -> None:
    world.lose("node-1")
    request = drain(world)
    assert world.refused[request].failure.kind == "NotReady"
    notice(world)
    go_on(world, 3.0)
    assert state(world) is D.DRAINING
    world.attach("node-1")
    go_on(world)
    assert (state(world), places(world)) == (D.DRAINED, ["node-1", "node-3"])


def test_a_record_of_an_older_version_is_nobodys_notice(world: World) -> None:
    drain(world, "node-3")
    world.store()
    go_on(world, 2.0)
    world.drains["node-3"] = replace(world.drains["node-3"], session="")
    world.new_leader()
    replaced(world, "node-3")
    go_on(world, 2.0)
    assert state(world, "node-3") is D.DRAINED


def test_the_next_shim_that_says_the_same_goes_too(world: World) -> None:
    """It came on the machine that goes, and has told so before anybody looked."""
    notice(world)
    serve(world)
    world.store()
    replaced(world)
    notice(world)
    for _ in range(3):
        world.tick(1.0)
        serve(world)
        world.store()
    assert state(world) is not D.UNDRAINED
    assert world.drains["node-2"].session == f"s{world.nodes['node-2'].session}"


def test_who_is_no_shim_and_joins_a_shims_drain_is_not_told_when_that_shim_has_gone(
    world: World,
) -> None:
    """A cloud's notice by the hook is told once."""
    notice(world)
    serve(world)
    world.store()
    drain(world, notice=True)
    replaced(world)
    world.tick(1.5)
    go_on(world, 2.0)
    assert state(world) is not D.UNDRAINED
