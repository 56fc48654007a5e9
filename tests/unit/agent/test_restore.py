"""FETCH to RELEASE over fake drivers, and what is put away when it fails."""

from __future__ import annotations

import asyncio
import os
import sys
import threading

import pytest

from coordinator.core.errors import DriverError
from coordinator.core.model import AddressMove, Endpoint
from tests.unit.agent.fakes import RANK, ROOT
from tests.unit.agent.rig import INSIDE, OUTSIDE, OWN, PEER, Rig
from worker_shim.agent.restoring import leaving
from worker_shim.network.port import Sockets


async def test_in_place(rig: Rig) -> None:
    saved = await rig.to("PERSIST")
    fetched = await rig.done("FETCH", "r1", record=saved)
    assert "files" in fetched.note
    assert rig.process.state == "S"  # the old incarnation has not noticed
    await rig.done("CLEAR", "r1", record=saved, connections=(PEER,))
    assert rig.process.state == ""
    lock = rig.network.locks["llm/0"]
    assert {PEER, *INSIDE} <= set(lock.established)
    assert ("0.0.0.0", 29500) in lock.listening
    assert rig.files.rolled_back == []  # old workers on other nodes may still write to them
    assert rig.process.counter == RANK
    names = [name for name, _ in rig.network.calls]
    assert names.index("clear") > names.index("lock")
    locks = names.count("lock")
    back = await rig.done("RESTORE", "r1", record=saved, incarnation=2, workers=1)
    assert back.root_pid == ROOT
    assert rig.files.rolled_back == [((), "a1")]
    assert "files kept aside" in back.note
    names = [name for name, _ in rig.network.calls]
    assert names.count("lock") == locks  # all that came back was locked before the kill
    assert (rig.process.state, rig.worker.state) == ("T", "restored")
    assert rig.page.refreshed
    assert rig.hook.renewed[0]["hold"] != 0  # still parked when it wakes up
    assert rig.hook.renewed[0]["incarnation"] == 2
    assert rig.page.hold != 0
    await rig.done("OPEN", "r1")
    assert not rig.network.locks
    assert (rig.process.state, rig.page.hold != 0) == ("T", True)  # it is sent to, and stands
    await rig.done("RELEASE", "r1")
    assert rig.worker.incarnation == 2
    assert rig.free()
    await rig.to("PERSIST", "a2")


async def test_on_a_spare(rig: Rig, tmp_path: object) -> None:
    saved = await rig.to("PERSIST")
    await rig.agent.stop()
    assert rig.agent.states() == ()
    await rig.back_to("FETCH", saved)
    assert rig.agent.states() == ()  # images alone are no worker
    await rig.done("CLEAR", "r1", record=saved, connections=(PEER,))
    move = AddressMove("10.0.0.1", "10.0.0.7")
    moved = Endpoint("10.0.0.7", 4000, "10.0.0.2", 5000)
    locks = [name for name, _ in rig.network.calls].count("lock")
    rig.worker.restoration.connections = (moved,)  # type: ignore[union-attr]
    await rig.done("RESTORE", "r1", record=saved, incarnation=2, workers=1, addresses=(move,))
    assert rig.images.moved == [({"10.0.0.1": "10.0.0.7"}, (OUTSIDE,))]
    assert [name for name, _ in rig.network.calls].count("lock") == locks + 1  # not known before
    await rig.done("RELEASE", "r1")
    assert rig.free()


async def test_staging_goes_beside_the_answer(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    """RELEASE does not wait for it, the next action that needs the room does."""
    saved = await rig.to("PERSIST")
    await rig.back_to("RESTORE", saved)
    may_go, drop = threading.Event(), rig.staging.drop

    def slowly(job: str, worker: int, action: str) -> None:
        assert may_go.wait(10.0)
        drop(job, worker, action)

    monkeypatch.setattr(rig.staging, "drop", slowly)
    released = await rig.order("RELEASE", "r1")
    assert not released.HasField("failure")
    assert rig.staging.place("llm", 0, "r1").exists()
    since = rig.give("FETCH", "r2", record=saved)
    await asyncio.sleep(0)
    assert not rig.staging.place("llm", 0, "r2").exists()
    may_go.set()
    assert not (await rig.answer("FETCH", since, "r2")).HasField("failure")
    assert not rig.staging.place("llm", 0, "r1").exists()
    assert rig.staging.place("llm", 0, "r2").exists()


def test_which_connections_left_the_job() -> None:
    sockets = Sockets((PEER, OUTSIDE, *INSIDE), ())
    assert leaving(sockets, (PEER,), {}) == (OUTSIDE,)
    assert leaving(sockets, (PEER, OUTSIDE), {}) == ()
    assert leaving(Sockets((OWN,), ()), (), {}) == (OWN,)  # whose other end holds nobody here
    moved = Endpoint("10.0.0.9", 4000, "10.0.0.2", 5000)
    assert leaving(Sockets((PEER,), ()), (moved,), {"10.0.0.1": "10.0.0.9"}) == ()


@pytest.mark.parametrize(
    ("driver", "method", "phase"),
    [
        ("network", "clear", "CLEAR"),
        ("files", "roll_back", "RESTORE"),
        ("images", "restore", "RESTORE"),
    ],
)
async def test_a_failed_restore_is_put_away(rig: Rig, driver: str, method: str, phase: str) -> None:
    saved = await rig.to("PERSIST")
    getattr(rig, driver).broken.add(method)
    if phase == "RESTORE":
        await rig.back_to("CLEAR", saved)
        failed = await rig.order("RESTORE", "r1", record=saved, incarnation=2)
    else:
        await rig.back_to("FETCH", saved)
        failed = await rig.order("CLEAR", "r1", record=saved)
    assert (failed.failure.phase, method in failed.failure.what) == (phase, True)
    await rig.done("UNDO", "r1", kill=True)
    assert (rig.process.state, rig.network.locks) == ("", {})
    assert not rig.staged()
    getattr(rig, driver).broken.clear()
    await rig.back_to("RELEASE", saved, "r2")
    assert rig.free()


async def test_images_go_even_where_the_rest_cannot_be_put_away(rig: Rig) -> None:
    """Nobody looks for them again: the next restore has a place of its own."""
    saved = await rig.to("PERSIST")
    await rig.back_to("RESTORE", saved)
    rig.network.broken.add("unlock")
    failed = (await rig.order("UNDO", "r1", kill=True)).failure
    assert "unlock" in failed.what
    assert not rig.staged()
    rig.network.broken.clear()
    await rig.back_to("RELEASE", saved, "r2")
    assert rig.free()


async def test_a_worker_that_was_released_already_is_put_away_too(rig: Rig) -> None:
    """Another worker of the job could not be released, so the restore failed as a whole."""
    saved = await rig.to("PERSIST")
    await rig.back_to("RELEASE", saved)
    await rig.done("UNDO", "r1", kill=True)
    assert (rig.process.state, rig.agent.states()) == ("", ())
    assert not any(message.HasField("exited") for message in rig.sent)


async def test_undo_before_clear_leaves_the_old_worker_alone(rig: Rig) -> None:
    saved = await rig.to("PERSIST")
    await rig.back_to("FETCH", saved)
    await rig.done("UNDO", "r1", kill=True)
    assert rig.free()
    assert rig.worker.incarnation == 1


async def test_a_tree_that_came_back_running_is_refused(rig: Rig) -> None:
    saved = await rig.to("PERSIST")
    await rig.back_to("CLEAR", saved)
    rig.images.restored_state = "R"
    failed = (await rig.order("RESTORE", "r1", record=saved, incarnation=2)).failure
    assert "running" in failed.what
    await rig.done("UNDO", "r1", kill=True)
    assert rig.process.state == ""


async def test_clear_without_a_record_only_removes(rig: Rig) -> None:
    await rig.done("CLEAR", "r1")
    assert (rig.process.state, rig.agent.states()) == ("", ())
    assert not any(message.HasField("exited") for message in rig.sent)


async def test_a_taken_task_id_is_named(rig: Rig) -> None:
    rig.images.pids = (ROOT, RANK, os.getpid())
    saved = await rig.to("PERSIST")
    await rig.back_to("FETCH", saved)
    failed = (
        await rig.order("CLEAR", "r1", record=saved, connections=(PEER,), deadline_s=0.2)
    ).failure
    assert (failed.kind, str(os.getpid()) in failed.what) == ("DriverError", True)
    assert f"{os.getpid()}: {sys.orig_argv[0]}" in failed.details[0]


async def test_damaged_images_change_nothing(rig: Rig) -> None:
    saved = await rig.to("PERSIST")
    rig.store.failure = DriverError("pages-1.img is not what was committed")
    failed = (await rig.order("FETCH", "r1", record=saved)).failure
    assert failed.what == "pages-1.img is not what was committed"
    refused = (await rig.order("CLEAR", "r1", record=saved)).failure
    assert refused.kind == "Refused"
    assert rig.process.state == "S"


async def test_release_and_restore_need_what_comes_before(rig: Rig) -> None:
    saved = await rig.to("PERSIST")
    assert (await rig.order("RELEASE", "r1")).failure.kind == "Refused"
    await rig.back_to("FETCH", saved, "r2")
    early = await rig.order("RESTORE", "r2", record=saved, incarnation=2)
    assert "not cleared" in early.failure.what
