"""Each order once, none of an old leader, and an undo is not kept waiting."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from coordinator.core.errors import Fenced, SetupError
from tests.unit.agent.rig import Rig
from worker_shim.agent.fence import Fence


def test_the_fence_survives_a_restart(tmp_path: Path) -> None:
    Fence(tmp_path).admit(7)
    again = Fence(tmp_path)
    assert again.highest == 7
    with pytest.raises(Fenced, match="epoch 6"):
        again.admit(6)
    again.admit(7)
    assert not list(tmp_path.glob("*.new"))


def test_a_damaged_fence_is_never_guessed(tmp_path: Path) -> None:
    (tmp_path / "epoch").write_text("x")
    with pytest.raises(SetupError):
        Fence(tmp_path)


async def test_an_old_epoch_has_no_effect(rig: Rig) -> None:
    await rig.to("HOLD", epoch=5)
    calls = (list(rig.process.calls), list(rig.network.calls), list(rig.page.raised))
    for phase in ("PARK", "DUMP", "UNDO", "STOP", "CLEAR"):
        refused = (await rig.order(phase, epoch=4)).failure
        assert (refused.kind, refused.definite, refused.node) == ("Fenced", True, "n0")
    assert calls == (rig.process.calls, rig.network.calls, rig.page.raised)
    assert rig.worker.state == "held"
    assert not list(rig.worker.undone)


async def test_the_same_order_again_is_answered_and_not_done_again(rig: Rig) -> None:
    first = await rig.to("DUMP")
    again = await rig.done("DUMP", cut="CUT_STEP")
    assert rig.images.calls == ["dump"]
    assert again == first
    later = await rig.done("DUMP", cut="CUT_STEP", epoch=9)  # a new leader asks
    assert (rig.images.calls, later.epoch) == (["dump"], 9)
    failing = await rig.order("PARK", "other", target=3)
    assert (await rig.order("PARK", "other", target=3)).failure == failing.failure


async def test_an_order_that_runs_is_answered_once_for_the_newest_epoch(rig: Rig) -> None:
    await rig.to("PARK")
    rig.images.gate = asyncio.Event()
    since = rig.give("DUMP", cut="CUT_STEP")
    rig.give("DUMP", cut="CUT_STEP", epoch=3)
    rig.images.gate.set()
    assert (await rig.answer("DUMP", since)).epoch == 3
    await rig.done("RESUME", epoch=3)
    answers = [m for m in rig.sent[since:] if m.result.record.dump_ms]
    assert (len(answers), rig.images.calls) == (1, ["dump"])


async def test_undo_cuts_a_wait_short(rig: Rig) -> None:
    await rig.to("HOLD")
    rig.page.lazy = True
    since = rig.give("PARK", target=8, deadline_s=60.0)
    await asyncio.sleep(0)
    async with asyncio.timeout(5):
        await rig.done("UNDO")
        assert (await rig.answer("PARK", since)).failure.kind == "AttemptFailed"
    assert rig.free()


async def test_undo_waits_for_a_dump(rig: Rig) -> None:
    """criu is never killed while it holds a tree: its parasite and repair mode would stay."""
    await rig.to("PARK")
    rig.images.gate = asyncio.Event()
    since = rig.give("DUMP", cut="CUT_STEP")
    await asyncio.wait_for(rig.images.begun.wait(), 5)
    undoing = rig.give("UNDO")
    for _ in range(20):
        await asyncio.sleep(0)
    assert "go_on" not in rig.process.calls
    rig.images.gate.set()
    await rig.answer("DUMP", since)
    await rig.answer("UNDO", undoing)
    assert rig.free()


async def test_what_waits_behind_a_dump_is_not_begun_after_an_undo(rig: Rig) -> None:
    gate = await rig.in_dump()
    waiting, undoing = rig.give("GPU_LOCK", cut="CUT_STEP"), rig.give("UNDO")
    gate.set()
    assert (await rig.answer("GPU_LOCK", waiting)).failure.kind == "AttemptFailed"
    await rig.answer("UNDO", undoing)
    assert rig.free()


async def test_what_was_undone_since_is_not_told_as_done(rig: Rig) -> None:
    """A leader whose abort was never recorded is followed by one that goes on after the cut."""
    await rig.to("PERSIST", epoch=1)
    await rig.done("UNDO", epoch=1)
    again = (await rig.order("PERSIST", epoch=2)).failure
    assert (again.kind, rig.store.published) == ("AttemptFailed", {})
    assert again.what == "a1 was undone on this node"


async def test_orders_of_an_undone_action_are_refused(rig: Rig) -> None:
    await rig.done("UNDO", "a1")
    refused = (await rig.order("HOLD", "a1", cut="CUT_STEP")).failure
    assert (refused.kind, rig.page.raised) == ("AttemptFailed", [])


async def test_workers_do_not_wait_for_each_other(rig: Rig) -> None:
    await rig.to("PARK")
    rig.images.gate = asyncio.Event()
    since = rig.give("DUMP", cut="CUT_STEP")
    await rig.order("UNDO", "b1", job="other")
    rig.images.gate.set()
    await rig.answer("DUMP", since)


async def test_an_unknown_worker_is_named(rig: Rig) -> None:
    refused = (await rig.order("RESUME", "b1", job="other")).failure
    assert (refused.kind, refused.job) == ("NotFound", "other")


async def test_a_detail_of_another_phase_is_no_order(rig: Rig) -> None:
    before = len(rig.sent)
    from tests.support.fake_coordinator import order_message

    message = order_message("HOLD", "a1", "llm", 0, 1, 5.0, 0.0, {"cut": "CUT_STEP"})
    message.order.phase = "PHASE_DUMP"  # type: ignore[assignment]
    rig.agent.on_message(message)
    refused = (await rig.answer("DUMP", before)).failure
    assert (refused.kind, refused.phase, refused.node) == ("BadRequest", "DUMP", "n0")
    assert rig.process.state == "S"
    assert (await rig.order("DUMP")).failure.what == "cut of DumpOrder is not set"
