"""What workers tell of files reaches the restore's record, as far as that has room."""

from __future__ import annotations

from dataclasses import replace

import pytest

from coordinator.core import events
from coordinator.core.files import FileBack
from coordinator.core.model import Phase
from coordinator.core.returning import FILES_MAX, from_record
from tests.support.core_checks import sent
from tests.support.core_restores import half_lost_world, until
from tests.support.core_world import World


@pytest.fixture
def world() -> World:
    return half_lost_world()


def test_what_was_done_to_files_is_in_the_record_and_in_its_last_sentence(world: World) -> None:
    aside = FileBack(0, "node-1", "/data/log", "cut", "/data/log.after-a1", 7)
    holes = [FileBack(1, "node-3", f"/data/{n}", "hole", "", n) for n in range(FILES_MAX)]
    until(world, Phase.RESTORE)
    for order, files in zip(sent(world, Phase.RESTORE), ((aside,), tuple(holes)), strict=True):
        world.orders.remove(order)
        answered = world.nodes[order.node].carry_out(order)
        assert isinstance(answered, events.Restored)
        world.event(replace(answered, files=files, files_unnamed=2))
    world.store()
    world.settle()
    record = world.restores["r1"]
    assert record.files == (aside, *holes[:-1])
    assert record.files_unnamed == 5
    assert "1 or more files were rolled back, and what came after is kept" in record.reason
    assert "made anew with a hole for what was not kept: /data/0 on node-3" in record.reason
    heir = from_record(record, epoch=2, policy=world.control.policy, now=0.0)
    assert heir.record().files == record.files, "a new leader does not forget them"
    assert heir.record().files_unnamed == 5
