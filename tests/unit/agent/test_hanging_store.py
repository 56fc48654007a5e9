"""A store that hangs keeps no worker: it is let go first, and the store is waited for last."""

from __future__ import annotations

import asyncio
import os
import threading
from pathlib import Path

import pytest

from coordinator.core.errors import DriverError
from tests.unit.agent.rig import Rig
from tests.unit.images.kit import put
from worker_shim.agent import undoing
from worker_shim.images.chunk_store import ChunkStore
from worker_shim.images.objects.memory import MemoryObjects
from worker_shim.images.staging import Staging

UNDO_S = 0.3
MOMENT_S = 5.0


async def hanging(rig: Rig, phase: str, action: str = "a1", **detail: object) -> int:
    """The order is in the store, which does not answer."""
    rig.store.hang = asyncio.Event()
    rig.store.hanging.clear()
    since = rig.give(phase, action, deadline_s=60.0, **detail)
    await asyncio.wait_for(rig.store.hanging.wait(), MOMENT_S)
    return since


def answers(rig: Rig) -> None:
    assert rig.store.hang is not None
    rig.store.hang.set()
    rig.store.hang = None


async def test_a_stopped_worker_does_not_wait_for_the_store(rig: Rig) -> None:
    """As in `checkpoint --stop`: PERSIST while the worker stands."""
    await rig.to("DUMP")
    persisting = await hanging(rig, "PERSIST")
    undoing = rig.give("UNDO", deadline_s=60.0)
    await asyncio.wait_for(rig.process.went_on.wait(), MOMENT_S)
    assert rig.process.state == "S"
    assert (rig.network.locks, rig.page.hold, rig.worker.action) == ({}, 0, "")
    answers(rig)
    assert not (await rig.answer("UNDO", undoing)).HasField("failure")
    assert (await rig.answer("PERSIST", persisting)).failure.kind == "AttemptFailed"
    assert rig.free()
    assert rig.store.published == {}
    await rig.to("PERSIST", "a2")


async def test_a_store_that_never_answers_is_said(rig: Rig) -> None:
    await rig.to("DUMP")
    await hanging(rig, "PERSIST")
    failure = (await rig.order("UNDO", deadline_s=UNDO_S)).failure
    assert (failure.kind, failure.definite) == ("DriverError", False)
    assert "image store has not answered" in failure.what
    assert rig.free()  # also nothing is left in staging
    answers(rig)
    await rig.done("UNDO")  # a second one finds nothing
    assert rig.store.published == {}


async def test_a_store_that_does_not_delete_is_said(rig: Rig) -> None:
    await rig.to("PERSIST")
    rig.store.hang = asyncio.Event()
    failure = (await rig.order("UNDO", deadline_s=UNDO_S)).failure
    assert "has not removed llm/a1/0" in failure.what
    assert rig.free()
    answers(rig)
    await rig.done("UNDO")
    assert rig.store.published == {}


async def test_a_fetch_that_hangs_is_undone(rig: Rig) -> None:
    saved = await rig.to("PERSIST")
    await hanging(rig, "FETCH", "r1", record=saved)
    failure = (await rig.order("UNDO", "r1", deadline_s=UNDO_S, kill=True)).failure
    assert "image store has not answered" in failure.what
    assert rig.free()  # the old worker was not touched
    answers(rig)
    await rig.back_to("RELEASE", saved, "r2")


async def test_a_fenced_worker_does_not_wait_for_the_store(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(undoing, "COPIES_S", UNDO_S)
    await rig.to("RESUME")
    await hanging(rig, "PERSIST")
    lane = rig.agent._lane("llm", 0)
    putting_out = asyncio.ensure_future(lane.alone(undoing.put_out))
    await asyncio.wait_for(rig.process.gone.wait(), MOMENT_S)
    await asyncio.wait_for(putting_out, MOMENT_S)
    assert not rig.staged()
    answers(rig)


async def test_a_shim_ends_although_the_store_hangs(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(undoing, "COPIES_S", UNDO_S)
    await rig.to("RESUME")
    await hanging(rig, "PERSIST")
    await asyncio.wait_for(rig.agent.stop(), MOMENT_S)
    assert rig.process.state == ""
    answers(rig)


class HangingPut:
    """A store of objects whose server is gone while it writes; not even `stop` ends it."""

    def __init__(self, ends: str) -> None:
        self.begun, self.gate = threading.Event(), threading.Event()
        self.objects = MemoryObjects(before=self._before)
        self._ends = ends

    def _before(self, method: str, name: str) -> None:
        if method == "put" and self._ends in name:
            self.begun.set()
            self.gate.wait(30)


async def test_a_real_put_that_hung_publishes_nothing_later(tmp_path: Path) -> None:
    """Staging is removed under a put that hangs; going on it makes nothing and cleans up."""
    staging, hanging = Staging(tmp_path / "staging", "n0"), HangingPut("/packs/")
    store = ChunkStore(hanging.objects)
    place = staging.create("llm", 0, "a1", need_bytes=1)
    for number in range(9):
        (place / f"images/pages-{number}.img").write_bytes(os.urandom(1 << 20))
    putting = asyncio.ensure_future(put(store, place))
    assert await asyncio.to_thread(hanging.begun.wait, 10)
    putting.cancel()
    _, late = await asyncio.wait({putting}, timeout=0.2)
    assert late
    staging.drop("llm", 0, "a1")
    hanging.gate.set()
    with pytest.raises(asyncio.CancelledError):
        await putting
    assert not place.exists()
    assert hanging.objects.objects == {}


async def test_a_put_that_is_undone_while_it_publishes_is_taken_back(tmp_path: Path) -> None:
    staging, hanging = Staging(tmp_path / "staging", "n0"), HangingPut("/manifest")
    store = ChunkStore(hanging.objects)
    place = staging.create("llm", 0, "a1", need_bytes=1)
    (place / "images/pages-1.img").write_bytes(b"x")
    putting = asyncio.ensure_future(put(store, place, s=0.3))
    assert await asyncio.to_thread(hanging.begun.wait, 10)
    _, late = await asyncio.wait({putting}, timeout=0.6)  # its deadline has passed
    assert late
    hanging.gate.set()
    with pytest.raises(DriverError, match="did not end within"):
        await putting
    assert hanging.objects.objects == {}
