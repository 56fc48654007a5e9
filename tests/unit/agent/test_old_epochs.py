"""What a coordinator of the past says touches nothing: no driver, no disk, no memory of the worker.

And what a new one says does so only after its epoch is on disk.
"""

from __future__ import annotations

import asyncio
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest
from allstop.v1 import shim_pb2

from coordinator.core.errors import Fenced
from coordinator.core.model import Phase
from tests.support.fake_coordinator import order_message
from tests.unit.agent.rig import Rig
from worker_shim.agent.fence import Fence
from worker_shim.agent.ports import Drivers

NEW, OLD = 5, 4
ORDERED = [
    *("HOLD", "PARK", "GPU_LOCK", "GPU_SAVE", "DUMP", "RESUME", "PERSIST", "STOP", "UNDO"),
    *("FETCH", "CLEAR", "RESTORE", "GPU_RESTORE", "GPU_UNLOCK", "OPEN", "RELEASE"),
]
QUIET = frozenset({"current"})  # the node's name, for errors


class Spy:
    """A driver that notes which method is called, and what the fence's file held then."""

    def __init__(self, name: str, behind: Any, notes: list[tuple[str, str]], file: Path) -> None:
        self._name, self._behind, self._notes, self._file = name, behind, notes, file

    def __getattr__(self, attribute: str) -> Any:
        found = getattr(self._behind, attribute)
        if callable(found) and attribute not in QUIET:
            on_disk = self._file.read_text().strip() if self._file.exists() else ""
            self._notes.append((f"{self._name}.{attribute}", on_disk))
        return found


def spied(rig: Rig) -> list[tuple[str, str]]:
    """Every driver of the rig notes its calls from now on."""
    notes: list[tuple[str, str]] = []
    kept = {"run_root"}
    names = [field.name for field in fields(Drivers) if field.name not in kept]
    file = rig.tmp_path / "state" / "epoch"
    spies = {name: Spy(name, getattr(rig.drivers, name), notes, file) for name in names}
    drivers = replace(rig.drivers, **spies)
    rig.agent.drivers = rig.worker.drivers = drivers
    return notes


def memory(rig: Rig) -> dict[str, Any]:
    """Everything that the shim remembers of the worker and its timer, and what is on disk."""
    worker = rig.worker
    kept = {name: value for name, value in vars(worker).items() if name != "drivers"}
    kept |= {"undone": set(worker.undone), "dumped": dict(worker.dumped)}
    timer = rig.agent._lane("llm", 0).timer
    disk = sorted(str(path.relative_to(rig.tmp_path)) for path in rig.tmp_path.rglob("*"))
    page = {name: value for name, value in vars(rig.page).items() if name != "raised"}
    return {**kept, "until": timer._until, "armed": timer.armed, "disk": disk, "page": page}


async def held(rig: Rig) -> list[tuple[str, str]]:
    """The worker is held by an attempt of the new leader, under a timer."""
    await rig.to("HOLD", epoch=NEW, hold_s=60.0)
    return spied(rig)


def test_every_phase_is_tried() -> None:
    decided = {Phase.PREFLIGHT, Phase.COMMIT, Phase.PLAN, Phase.ADMIT}  # the coordinator's own
    assert {Phase(name) for name in ORDERED} == set(Phase) - decided


@pytest.mark.parametrize("action", ["a1", "other"])
@pytest.mark.parametrize("phase", ORDERED)
async def test_an_order_of_the_past_touches_nothing(rig: Rig, phase: str, action: str) -> None:
    notes = await held(rig)
    before = memory(rig)
    refused = (await rig.order(phase, action, epoch=OLD, hold_s=90.0)).failure
    assert (refused.kind, refused.definite, refused.node) == ("Fenced", True, "n0")
    assert notes == []
    assert memory(rig) == before
    assert rig.fence.highest == NEW
    await rig.done("UNDO", epoch=NEW)
    assert rig.free()


async def test_an_order_of_the_past_makes_no_worker(rig: Rig) -> None:
    await rig.done("UNDO", epoch=NEW)
    refused = (await rig.order("FETCH", "b1", epoch=OLD, job="other")).failure
    assert refused.kind == "Fenced"
    assert list(rig.agent._lanes) == [("llm", 0)]


@pytest.mark.parametrize("kind", ["fenced", "admitted", "waiting", "stay", "orders", "welcome"])
async def test_a_message_of_the_past_touches_nothing(rig: Rig, kind: str) -> None:
    notes = await held(rig)
    message = shim_pb2.CoordinatorMessage()
    named = {"job": "llm", "worker": 0}
    if kind == "fenced":
        message.fenced.epoch, message.fenced.reason = OLD, "an old leader thinks so"
        message.fenced.workers.add(**named)
    elif kind == "admitted":
        message.admitted.CopyFrom(shim_pb2.Admitted(epoch=OLD, incarnation=7, **named))
    elif kind == "waiting":
        message.waiting.CopyFrom(shim_pb2.Waiting(epoch=OLD, reason="an old leader", **named))
    elif kind == "stay":
        message.stay.CopyFrom(shim_pb2.Stay(epoch=OLD, job="llm", for_ms=60_000))
    elif kind == "orders":
        for phase in ("PARK", "UNDO"):
            body = order_message(phase, "a1", "llm", 0, OLD, 5.0, 0.0, {})
            message.orders.orders.append(body.order)
    else:
        message.welcome.epoch, message.welcome.report_interval_ms = OLD, 7
    before, interval_s = memory(rig), rig.agent._interval_s
    if kind == "welcome":
        with pytest.raises(Fenced):
            rig.agent.on_message(message)  # the stream ends by it
        assert not rig.agent.welcomed.is_set()
    else:
        rig.agent.on_message(message)
    await asyncio.gather(*rig.agent._tasks)
    assert notes == []
    assert memory(rig) == before
    assert rig.agent._interval_s == interval_s
    assert rig.worker.fenced == ""
    assert not rig.agent.stays("llm")


async def test_a_restarted_shim_knows_the_epoch(rig: Rig, tmp_path: Path) -> None:
    await rig.to("HOLD", epoch=NEW)
    await rig.agent.stop()
    again = Rig(tmp_path)
    await again.launch()
    assert again.agent.hello().hello.highest_epoch == NEW
    notes = spied(again)
    for phase in ORDERED:
        assert (await again.order(phase, "a2", epoch=OLD)).failure.kind == "Fenced"
    with pytest.raises(Fenced):
        again.agent.on_welcome(shim_pb2.Welcome(epoch=OLD))
    assert notes == []
    await again.agent.stop()


@pytest.mark.parametrize("phase", ["PARK", "DUMP", "UNDO", "CLEAR"])
async def test_a_new_epoch_is_on_disk_before_anything_is_done(rig: Rig, phase: str) -> None:
    await rig.to("HOLD" if phase == "PARK" else "PARK", epoch=OLD)
    notes = spied(rig)
    detail = {"PARK": {"target": 8}, "DUMP": {"cut": "CUT_STEP"}}.get(phase, {})
    rig.worker.page = Spy("page", rig.page, notes, rig.tmp_path / "state" / "epoch")  # type: ignore[assignment]
    await rig.done(phase, epoch=NEW, **detail)
    assert notes
    assert {on_disk for _, on_disk in notes} == {str(NEW)}


async def test_a_disk_that_keeps_no_epoch_lets_nobody_act(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    await rig.to("HOLD", epoch=OLD)
    notes = spied(rig)

    def full(self: Fence, epoch: int) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as broken:
        broken.setattr(Fence, "_write", full)
        failure = (await rig.order("PARK", target=8, epoch=NEW)).failure
    assert failure.kind == "DriverError"
    assert "epoch 5 cannot be kept" in failure.what
    assert "No space left on device" in failure.what
    assert notes == []
    assert rig.fence.highest == OLD
    await rig.done("UNDO", epoch=NEW)
    assert rig.free()


# -- admitted, but not begun when the next leader speaks -------------------------------------------


@pytest.mark.parametrize("phase", ["RESUME", "STOP", "UNDO", "HOLD"])
async def test_an_order_that_waited_while_the_leader_changed_is_not_begun(
    rig: Rig, phase: str
) -> None:
    gate = await rig.in_dump(epoch=OLD)
    action, detail = ("a2", {"cut": "CUT_STEP"}) if phase == "HOLD" else ("a1", {})
    since = rig.give(phase, action, epoch=OLD, **detail)
    rig.agent.on_welcome(shim_pb2.Welcome(epoch=NEW))
    gate.set()
    answer = await rig.answer(phase, since, action)
    assert answer.failure.kind == "Fenced"
    assert (rig.process.state, rig.page.raised) == ("T", [1])
    await rig.done("UNDO", epoch=NEW)
    assert rig.free()


async def test_the_new_leader_may_want_the_same(rig: Rig) -> None:
    gate = await rig.in_dump(epoch=OLD)
    since = rig.give("RESUME", epoch=OLD)
    rig.give("RESUME", epoch=NEW)  # before its turn: one order, of the new leader
    gate.set()
    assert (await rig.answer("RESUME", since)).epoch == NEW
    assert rig.process.calls.count("go_on") == 1


async def test_what_was_refused_in_its_turn_may_be_ordered_again(rig: Rig) -> None:
    gate = await rig.in_dump(epoch=OLD)
    since = rig.give("RESUME", epoch=OLD)
    rig.agent.on_welcome(shim_pb2.Welcome(epoch=NEW))
    gate.set()
    assert (await rig.answer("RESUME", since)).failure.kind == "Fenced"
    await rig.done("RESUME", epoch=NEW)
    assert rig.process.calls.count("go_on") == 1


async def test_a_fence_that_waited_while_the_leader_changed_kills_nobody(rig: Rig) -> None:
    gate = await rig.in_dump(epoch=OLD)
    message = shim_pb2.CoordinatorMessage()
    message.fenced.epoch, message.fenced.reason = OLD, "an old leader thought so"
    message.fenced.workers.add(job="llm", worker=0)
    rig.agent.on_message(message)
    for _ in range(5):
        await asyncio.sleep(0)  # its task waits for the lane now
    assert "a1" in rig.worker.undone
    rig.agent.on_welcome(shim_pb2.Welcome(epoch=NEW))
    gate.set()
    await asyncio.gather(*rig.agent._tasks)
    assert "kill" not in rig.process.calls
    assert (rig.worker.fenced, rig.worker.state) == ("", "stopped")
    await rig.done("UNDO", epoch=NEW)
    assert rig.free()
