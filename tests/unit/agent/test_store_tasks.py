"""Tasks about the image store: fenced, done once at a time, bounded, answered whatever happens."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from allstop.v1 import records_pb2, shim_pb2

from coordinator.core.errors import DriverError
from tests.unit.agent.rig import Rig
from worker_shim.agent import tasks
from worker_shim.images.port import Manifest, Stored


@pytest.fixture
async def rig(tmp_path: Path) -> Rig:
    return Rig(tmp_path)


def task(name: str, epoch: int = 1, **what: Any) -> shim_pb2.CoordinatorMessage:
    made = shim_pb2.StoreTask(epoch=epoch, task=name, job="llm", deadline_ms=5000, **what)
    return shim_pb2.CoordinatorMessage(task=made)


LIST = {"list": shim_pb2.ListAttempts()}


async def answer(rig: Rig, name: str, since: int = 0) -> shim_pb2.StoreTaskResult:
    def fits(message: shim_pb2.ShimMessage) -> Any:
        return message.done if message.HasField("done") and message.done.task == name else None

    return await rig.until(fits, since)


async def put(rig: Rig, tmp_path: Path, action: str) -> Stored:
    staged = tmp_path / action
    staged.mkdir()
    (staged / "pages-1.img").write_bytes(action.encode() * 1000)
    manifest = Manifest(1, "llm", 0, action, 1, 1, (), (), {}, (), 1, ("python",), "/run")
    return await rig.store.put(staged, manifest, progress=lambda a, b: None, deadline_s=5.0)


async def test_what_is_there_is_listed_collected_and_verified(rig: Rig, tmp_path: Path) -> None:
    kept, dead = [await put(rig, tmp_path, name) for name in ("a1", "a2")]
    rig.agent.on_message(task("t1", **LIST))
    assert list((await answer(rig, "t1")).attempts) == ["a1", "a2"]
    images = records_pb2.KeptImages(place=kept.place, digest=kept.digest)
    collect = shim_pb2.CollectAttempts(dead=["a2"], keep=[images], dry_run=True)
    rig.agent.on_message(task("t2", collect=collect))
    assert (await answer(rig, "t2")).objects == 1
    assert dead.place in rig.store.published
    collect.dry_run = False
    rig.agent.on_message(task("t3", collect=collect))
    assert (await answer(rig, "t3")).freed_bytes == 2000
    assert set(rig.store.published) == {kept.place}
    rig.agent.on_message(task("t4", verify=shim_pb2.VerifyImages(images=images)))
    assert not (await answer(rig, "t4")).damage
    rig.store.published[kept.place][1]["pages-1.img"] = b"x"
    rig.agent.on_message(task("t5", verify=shim_pb2.VerifyImages(images=images)))
    (damage,) = (await answer(rig, "t5")).damage
    assert (damage.file, damage.what) == ("pages-1.img", "other bytes than were committed")
    assert any(m.doing.task == "t5" for m in rig.sent if m.HasField("doing"))


async def test_an_older_epoch_is_refused_before_anything_is_done(rig: Rig, tmp_path: Path) -> None:
    await put(rig, tmp_path, "a1")
    rig.agent.on_message(task("t1", epoch=5, **LIST))
    await answer(rig, "t1")
    rig.agent.on_message(task("t2", epoch=4, collect=shim_pb2.CollectAttempts(dead=["a1"])))
    told = await answer(rig, "t2")
    assert (told.failure.kind, told.epoch) == ("Fenced", 4)
    assert rig.store.published


async def test_a_task_that_runs_is_not_begun_again_and_can_be_cancelled(rig: Rig) -> None:
    rig.store.hang = asyncio.Event()
    for _ in range(2):
        rig.agent.on_message(task("t1", **LIST))
    await rig.store.hanging.wait()
    rig.agent.on_message(task("t1", cancel=shim_pb2.CancelTask()))
    rig.store.hang.set()
    told = await answer(rig, "t1")
    assert "cancelled" in told.failure.what
    assert sum(message.HasField("done") for message in rig.sent) == 1
    rig.agent.on_message(task("t9", cancel=shim_pb2.CancelTask()))  # of one that is over


async def test_workers_do_not_wait_for_a_store_that_hangs(rig: Rig) -> None:
    await rig.launch()
    rig.store.hang = asyncio.Event()
    rig.agent.on_message(task("t1", **LIST))
    await rig.store.hanging.wait()
    since = rig.give("HOLD", cut="CUT_STEP", hold_s=5.0)
    assert not (await rig.answer("HOLD", since)).HasField("failure")
    rig.store.hang.set()
    await answer(rig, "t1")


async def test_there_is_a_bound(rig: Rig) -> None:
    rig.store.hang = asyncio.Event()
    for number in range(tasks.RUNNING_MAX + 1):
        rig.agent.on_message(task(f"t{number}", **LIST))
    told = await answer(rig, f"t{tasks.RUNNING_MAX}")
    assert told.failure.kind == "Busy"
    rig.store.hang.set()
    for number in range(tasks.RUNNING_MAX):
        await answer(rig, f"t{number}")
    rig.agent.on_message(task("later", **LIST))
    assert not (await answer(rig, "later")).HasField("failure")


@pytest.mark.parametrize(
    ("raised", "kind"),
    [
        (DriverError("the server is away"), "DriverError"),
        (OSError(5, "Input/output error"), "DriverError"),
        (ValueError("a defect"), "BugError"),
    ],
)
async def test_every_end_is_answered(
    rig: Rig, monkeypatch: pytest.MonkeyPatch, raised: Exception, kind: str
) -> None:
    async def fail(*_: object, **__: object) -> Callable[[], None]:
        raise raised

    monkeypatch.setattr(rig.store, "actions", fail)
    rig.agent.on_message(task("t1", **LIST))
    told = await answer(rig, "t1")
    assert told.failure.kind == kind
    assert told.failure.node == "n0"


async def test_a_newer_task_is_named_as_such(rig: Rig) -> None:
    rig.agent.on_message(task("t1"))
    assert "older version" in (await answer(rig, "t1")).failure.what


async def test_tasks_end_with_the_shim(rig: Rig) -> None:
    rig.store.hang = asyncio.Event()
    rig.agent.on_message(task("t1", **LIST))
    await rig.store.hanging.wait()
    (running,) = (each for each in asyncio.all_tasks() if each.get_name() == "task t1")
    stopping = asyncio.create_task(rig.agent.stop())
    async with asyncio.timeout(10):
        while not running.cancelling():  # noqa: ASYNC110 - nobody is told of that
            await asyncio.sleep(0.001)
    rig.store.hang.set()
    await stopping
    assert "cancelled" in (await answer(rig, "t1")).failure.what
