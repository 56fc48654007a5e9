"""No word comes: the shim lets its worker go by itself, from every state it can be held in."""

from __future__ import annotations

import asyncio

import pytest

from tests.unit.agent.rig import Rig

HOLD_S = 0.05


async def until_free(rig: Rig, state: str = "running") -> None:
    async with asyncio.timeout(5):
        while rig.agent.worker("llm", 0).findings == () or rig.worker.state != state:
            await rig.agent.change(at_most_s=0.5)


@pytest.mark.parametrize("phase", ["HOLD", "PARK", "DUMP"])
async def test_a_held_worker_is_let_go(rig: Rig, phase: str) -> None:
    await rig.to(phase, hold_s=HOLD_S)
    await until_free(rig)
    assert rig.free()
    assert [finding.code for finding in rig.worker.findings] == ["dead_man"]
    assert not (await rig.answer("UNDO", 0)).HasField("failure")
    late = (await rig.order("RESUME")).failure
    assert late.kind == "AttemptFailed"
    await rig.to("PERSIST", "a2")  # the next attempt finds a free worker


async def test_each_order_that_holds_begins_the_time_anew(rig: Rig) -> None:
    await rig.to("HOLD", hold_s=30.0)
    timer = rig.agent._lane("llm", 0).timer
    assert 25 < timer.left_s <= 30
    await rig.done("PARK", target=8, hold_s=60.0)
    assert 55 < timer.left_s <= 60
    await rig.done("DUMP", cut="CUT_STEP", hold_s=90.0)
    await rig.done("RESUME")
    assert not timer.armed


async def test_another_action_does_not_touch_the_timer(rig: Rig) -> None:
    await rig.to("HOLD", hold_s=30.0)
    timer = rig.agent._lane("llm", 0).timer
    assert (await rig.order("HOLD", "a2", cut="CUT_STEP", hold_s=90.0)).failure.kind == "Busy"
    assert 25 < timer.left_s <= 30
    await rig.done("UNDO", "a2")
    assert timer.armed
    await rig.done("UNDO", "a1")
    assert not timer.armed


async def test_a_wait_is_cut_short(rig: Rig) -> None:
    await rig.to("HOLD")
    rig.page.lazy = True
    since = rig.give("PARK", target=8, deadline_s=60.0, hold_s=HOLD_S)
    assert (await rig.answer("PARK", since)).failure.kind == "AttemptFailed"
    await until_free(rig)
    assert rig.free()


async def test_a_dump_is_waited_for(rig: Rig) -> None:
    await rig.to("PARK")
    rig.images.gate = asyncio.Event()
    since = rig.give("DUMP", cut="CUT_STEP", hold_s=HOLD_S)
    await asyncio.wait_for(rig.agent._lane("llm", 0).timer.ran_out.wait(), 5)
    assert "go_on" not in rig.process.calls
    rig.images.gate.set()
    await rig.answer("DUMP", since)
    await until_free(rig)
    assert rig.free()


async def test_what_cannot_be_undone_is_faulted(rig: Rig) -> None:
    await rig.to("DUMP", hold_s=HOLD_S * 4)
    rig.process.sticky = True
    await until_free(rig, "faulted")
    assert "could not undo" in rig.worker.findings[-1].text
    assert (await rig.answer("UNDO", 0)).failure.kind == "DriverError"
    rig.process.sticky = False


@pytest.mark.parametrize("phase", ["CLEAR", "RESTORE"])
async def test_a_restore_that_is_left_alone_is_put_away(rig: Rig, phase: str) -> None:
    saved = await rig.to("PERSIST")
    await rig.back_to(phase, saved, hold_s=HOLD_S)
    async with asyncio.timeout(5):
        while rig.worker.state != "" or rig.network.locks:
            await rig.agent.change(at_most_s=0.5)
    assert rig.process.state == ""
    assert rig.agent.states() == ()
    assert not rig.staged()
    assert rig.store.published  # the snapshot stays


async def test_what_is_on_its_way_to_the_store_stays(rig: Rig) -> None:
    """The coordinator may have declared the cut: the images are whole, only the job must move."""
    await rig.to("DUMP", hold_s=HOLD_S * 4)
    await rig.done("PERSIST")
    await until_free(rig)
    assert rig.free()
    assert rig.store.published


async def test_a_failed_hold_leaves_no_timer(rig: Rig) -> None:
    rig.page.boundary = -1
    await rig.order("HOLD", cut="CUT_STEP", hold_s=HOLD_S)
    assert not rig.agent._lane("llm", 0).timer.armed
