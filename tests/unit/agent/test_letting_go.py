"""Letting go when the tools fail, when two want to let go at once, and after a wait in the lane."""

from __future__ import annotations

import asyncio

import pytest

from tests.unit.agent.rig import Rig
from worker_shim.agent import lane as lanes
from worker_shim.agent import undoing
from worker_shim.network.fake import FakeNetworkDriver

HOLD_S = 0.05


class FailingLook:
    """`locked` raises so often, then looks."""

    def __init__(self, network: FakeNetworkDriver, times: int) -> None:
        self.network, self.times = network, times

    async def __call__(self, name: str) -> bool:
        self.times -= 1
        if self.times >= 0:
            raise OSError("cannot fork")
        return name in self.network.locks


class GatedUnlock:
    """`unlock` waits until the test lets it end."""

    def __init__(self, network: FakeNetworkDriver) -> None:
        self.network = network
        self.begun, self.gate = asyncio.Event(), asyncio.Event()

    async def __call__(self, name: str, *, deadline_s: float) -> None:
        self.begun.set()
        await self.gate.wait()
        self.network.locks.pop(name, None)


async def until_told(rig: Rig, findings: int) -> None:
    async with asyncio.timeout(5):
        while len(rig.worker.findings) < findings:
            await rig.agent.change(at_most_s=0.5)


async def test_a_worker_that_cannot_be_seen_is_let_go_all_the_same(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    await rig.to("DUMP")
    monkeypatch.setattr(rig.network, "locked", FailingLook(rig.network, 1))
    await rig.done("UNDO")
    assert rig.free()


async def test_a_failed_undo_is_carried_out_again(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    await rig.to("DUMP")
    monkeypatch.setattr(rig.network, "locked", FailingLook(rig.network, 2))
    failure = (await rig.order("UNDO")).failure
    assert (failure.kind, failure.definite) == ("DriverError", False)
    assert "OSError: cannot fork" in failure.details
    assert rig.process.state == "S"  # what could be done was done
    await rig.done("UNDO")
    assert rig.free()


async def test_the_timer_tries_again(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lanes, "AGAIN_S", HOLD_S)
    await rig.to("DUMP")
    monkeypatch.setattr(rig.network, "locked", FailingLook(rig.network, 6))
    rig.agent._lane("llm", 0).timer.arm("a1", HOLD_S)
    await until_told(rig, 2)
    first, last = rig.worker.findings  # three failures, told once
    assert "could not undo" in first.text
    assert "at a later try" in last.text
    assert rig.free()
    assert not rig.agent._lane("llm", 0).timer.armed


async def test_the_timer_survives_any_error(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lanes, "AGAIN_S", HOLD_S)

    async def fork_fails(*_: object, **__: object) -> None:
        raise OSError("no memory")

    with monkeypatch.context() as broken:
        broken.setattr(undoing, "put_back", fork_fails)
        await rig.to("DUMP", hold_s=HOLD_S)
        await until_told(rig, 1)
        assert rig.worker.state == "faulted"
    await until_told(rig, 2)
    assert rig.free()


@pytest.mark.parametrize("phase", ["RESUME", "RELEASE"])
async def test_a_timer_that_lost_the_race_does_nothing(
    rig: Rig, monkeypatch: pytest.MonkeyPatch, phase: str
) -> None:
    action = "a1"
    if phase == "RELEASE":
        saved = await rig.to("PERSIST")
        action = "r1"
        await rig.back_to("RESTORE", saved)
    else:
        await rig.to("DUMP")
    timer = rig.agent._lane("llm", 0).timer
    with monkeypatch.context() as gated:
        unlock = GatedUnlock(rig.network)
        gated.setattr(rig.network, "unlock", unlock)
        since = rig.give(phase, action)
        await asyncio.wait_for(unlock.begun.wait(), 5)
        rig.process.calls.clear()
        timer.arm(action, 0.01)
        await asyncio.wait_for(timer.ran_out.wait(), 5)
        await asyncio.sleep(0)  # its task waits for the lane now
        unlock.gate.set()
        assert not (await rig.answer(phase, since, action)).HasField("failure")
        await timer.settled(deadline_s=5)
    assert rig.process.calls == ["go_on"]
    assert (rig.process.state, rig.worker.state, rig.worker.findings) == ("S", "running", ())
    if phase == "RESUME":
        await rig.done("PERSIST")  # it is not undone


async def test_a_hold_that_waited_is_under_a_timer(rig: Rig) -> None:
    gate = await rig.in_dump()
    timer = rig.agent._lane("llm", 0).timer
    rig.give("RESUME")
    since = rig.give("HOLD", "a2", cut="CUT_STEP", hold_s=60.0)
    assert not timer.armed
    gate.set()
    assert not (await rig.answer("HOLD", since, "a2")).HasField("failure")
    assert 50 < timer.left_for_s("a2") <= 60


async def test_a_turn_never_shortens_the_timer(rig: Rig) -> None:
    gate = await rig.in_dump()
    timer = rig.agent._lane("llm", 0).timer
    since = rig.give("GPU_LOCK", hold_s=30.0)
    rig.give("GPU_SAVE", hold_s=90.0)
    gate.set()
    await rig.answer("GPU_LOCK", since)
    assert timer.left_for_s("a1") > 80


async def test_an_order_that_came_too_late_to_its_turn_is_not_begun(rig: Rig) -> None:
    gate = await rig.in_dump()
    since = rig.give("RESUME", deadline_s=0.01)
    await asyncio.sleep(0.03)
    gate.set()
    failure = (await rig.answer("RESUME", since)).failure
    assert (failure.kind, failure.definite) == ("DeadlinePassed", True)
    assert "go_on" not in rig.process.calls
    await rig.done("UNDO")
    assert rig.free()


@pytest.mark.parametrize("phase", ["UNDO", "STOP"])
async def test_the_time_of_an_undo_begins_with_its_turn(
    rig: Rig, monkeypatch: pytest.MonkeyPatch, phase: str
) -> None:
    gate = await rig.in_dump()
    given: list[float] = []
    unlock = rig.network.unlock

    async def noting(name: str, *, deadline_s: float) -> None:
        given.append(deadline_s)
        await unlock(name, deadline_s=deadline_s)

    monkeypatch.setattr(rig.network, "unlock", noting)
    since = rig.give(phase, deadline_s=1.0)
    await asyncio.sleep(0.5)
    gate.set()
    assert not (await rig.answer(phase, since)).HasField("failure")
    assert min(given, default=0.0) > 0.7
