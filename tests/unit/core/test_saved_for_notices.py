"""Notices by which jobs are saved: when something else has them, and when they are not whole."""

from __future__ import annotations

import pytest

from coordinator.core import events
from coordinator.core.drain_events import NoticeKind
from tests.support.core_checks import two_and_a_spare
from tests.support.core_drains import (
    go_on,
    notice,
    refused,
    saved,
    serve,
)
from tests.support.core_world import World

K = NoticeKind


@pytest.fixture
def world() -> World:
    """A job of two workers on node-1 and node-2, and a spare, node-3."""
    return two_and_a_spare()


def test_a_job_that_something_else_has_is_saved_after_that(world: World) -> None:
    world.checkpoint("llm", "a1")
    notice(world, K.CHECKPOINT, 0.0)
    assert not world.due
    world.settle()
    go_on(world, 3.0)
    assert saved(world) == 2
    assert not refused(world)
    go_on(world, 3.0)
    assert saved(world) == 2


def test_one_that_was_busy_when_it_was_asked_for_is_saved_after_that(world: World) -> None:
    notice(world, K.CHECKPOINT, 0.0)
    world.checkpoint("llm", "a1")
    serve(world)
    world.settle()
    go_on(world, 3.0)
    assert saved(world) == 2


def test_one_that_is_busy_until_its_time_is_up_is_refused(world: World) -> None:
    world.checkpoint("llm", "a1")
    notice(world, K.CHECKPOINT, 4.0)
    world.tick(5.0)
    (told,) = world.notices_refused
    assert (told.kind, told.again) == (K.CHECKPOINT, False)
    assert "until its time was up" in told.reason
    world.settle()
    go_on(world, 3.0)
    assert saved(world) == 1


def test_what_is_left_of_the_time_is_what_the_checkpoint_gets(world: World) -> None:
    world.checkpoint("llm", "a1")
    notice(world, K.CHECKPOINT, 30.0)
    world.tick(3.0)
    world.settle()
    world.tick(1.5)
    (asked,) = world.due
    assert asked.deadline_s == pytest.approx(30.0 - world.now, abs=1.6)


def test_a_job_that_has_left_the_node_meanwhile_is_not_saved_for_it(world: World) -> None:
    world.checkpoint("llm", "a1", stop=True)
    notice(world, K.CHECKPOINT, 0.0)
    world.settle()
    for name in ("node-1", "node-2"):
        gone = world.nodes[name].workers.pop(("llm", int(name[-1]) - 1))
        world.event(events.WorkerExited(name, "llm", gone.worker, gone.incarnation, -9))
    go_on(world, 3.0)
    assert not world.due
    assert saved(world) == 1


def test_a_job_that_is_not_whole_at_a_notice_to_save_is_saved_once_it_is(world: World) -> None:
    world.nodes["node-1"].workers[("llm", 0)].state = "starting"
    world.report("node-1")
    notice(world, K.CHECKPOINT)
    assert not world.due
    world.nodes["node-1"].workers[("llm", 0)].state = "running"
    world.report("node-1")
    world.tick(1.5)
    assert len(world.due) == 1
