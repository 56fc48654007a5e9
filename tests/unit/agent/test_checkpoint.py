"""HOLD to PERSIST, STOP and UNDO over fake drivers."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from coordinator.core.model import Finding, Severity
from tests.unit.agent.fakes import RANK, ROOT
from tests.unit.agent.rig import INSIDE, OUTSIDE, PEER, SOCKETS, Rig
from worker_shim.agent import dumping
from worker_shim.compatibility.node import STAND_STILL_S
from worker_shim.criu.port import DumpStats


async def test_a_whole_checkpoint(rig: Rig) -> None:
    held = await rig.done("HOLD", cut="CUT_STEP")
    assert [rank.boundary for rank in held.ranks] == [7]
    assert rig.worker.state == "held"
    parked = await rig.done("PARK", target=8)
    assert [(rank.boundary, rank.parked) for rank in parked.ranks] == [(8, True)]
    dumped = await rig.done("DUMP", cut="CUT_STEP")
    assert rig.process.state == "T"
    assert rig.network.locks == {"llm/0": SOCKETS}
    assert dumped.record.manifest == ""
    assert (dumped.record.root_pid, dumped.record.highest_pid) == (ROOT, RANK)
    assert len(dumped.record.connections) == 2  # the loopback one is nobody's business
    resumed = await rig.done("RESUME")
    assert resumed.held_ms >= 0
    assert (rig.process.state, rig.network.locks, rig.page.hold) == ("S", {}, 0)
    saved = await rig.done("PERSIST")
    assert saved.record.manifest in rig.store.published
    assert saved.record.image_bytes >= 1000
    assert saved.record.held_ms == resumed.held_ms
    assert rig.free()


async def test_each_hold_has_a_generation_of_its_own(rig: Rig) -> None:
    for action in ("a1", "a2", "a3"):
        await rig.to("PERSIST", action)
    assert len(set(rig.page.raised)) == 3


async def test_a_hold_says_how_long_ranks_may_stand_still(rig: Rig) -> None:
    """For the preflight, which holds the watchdogs of ranks against it."""
    eyes = rig.worker.drivers.eyes
    await rig.to("HOLD", "a1", stand_still_ms=4_000_000)
    assert eyes.look().stand_still_s == 4000.0
    await rig.done("UNDO", "a1")
    await rig.to("HOLD", "a2")
    assert eyes.look().stand_still_s == STAND_STILL_S, "an older coordinator does not say"


async def test_persist_may_come_before_resume_has_ended(rig: Rig) -> None:
    await rig.to("DUMP")
    first, second = rig.give("PERSIST"), rig.give("RESUME")
    results = await asyncio.gather(rig.answer("PERSIST", first), rig.answer("RESUME", second))
    assert not any(result.HasField("failure") for result in results)
    assert rig.free()


async def test_freeze_needs_no_hook(rig: Rig) -> None:
    rig.page.boundary = -1
    await rig.done("DUMP", cut="CUT_FREEZE")
    assert rig.page.raised == []
    await rig.done("RESUME")
    await rig.done("PERSIST")
    assert rig.free()


async def test_stop_ends_the_worker_where_it_stands(rig: Rig) -> None:
    await rig.to("DUMP")
    await rig.done("PERSIST")
    await rig.done("STOP")
    assert (rig.process.state, rig.worker.state, rig.network.locks) == ("", "exited", {})
    assert rig.store.published
    assert not any(message.HasField("exited") for message in rig.sent)


async def test_gpu_phases_of_a_worker_without_devices_do_nothing(rig: Rig) -> None:
    await rig.to("PARK")
    assert (await rig.done("GPU_LOCK", cut="CUT_STEP")).note == "0 locked"
    assert (await rig.done("GPU_SAVE")).note.startswith("0 bytes")
    assert rig.cuda.done == []


async def test_a_finding_that_refuses_holds_nothing(rig: Rig) -> None:
    rig.process.findings = (Finding(Severity.REFUSE, "io_uring", "it has an io_uring", 0, RANK),)
    refused = (await rig.order("HOLD", cut="CUT_STEP")).failure
    assert (refused.kind, refused.job, refused.worker, refused.node, refused.phase) == (
        "NotReady", "llm", 0, "n0", "HOLD",
    )  # fmt: skip
    assert refused.details == ["io_uring: it has an io_uring"]
    assert (rig.page.raised, rig.worker.action, rig.worker.state) == ([], "", "running")
    frozen = await rig.order("DUMP", "a2", cut="CUT_FREEZE")
    assert frozen.failure.kind == "NotReady"
    assert rig.process.state == "S"


async def test_too_little_room_refuses(rig: Rig) -> None:
    rig.store.room_bytes = 1000
    refused = (await rig.order("HOLD", cut="CUT_STEP")).failure
    assert "store_space" in refused.details[0]


async def test_no_hook_is_said_so(rig: Rig) -> None:
    rig.page.boundary = -1
    refused = (await rig.order("HOLD", cut="CUT_STEP")).failure
    assert "hook" in refused.what
    assert rig.page.hold == 0


async def test_a_second_attempt_is_busy(rig: Rig) -> None:
    await rig.to("HOLD")
    refused = (await rig.order("HOLD", "a2", cut="CUT_STEP")).failure
    assert (refused.kind, "a1" in refused.what) == ("Busy", True)
    assert rig.worker.action == "a1"
    assert rig.page.hold != 0


async def test_a_late_rank_is_named_and_undone(rig: Rig) -> None:
    await rig.to("HOLD")
    rig.page.lazy = True
    late = (await rig.order("PARK", target=9, deadline_s=0.1)).failure
    assert (late.kind, late.phase, late.what) == (
        "DeadlinePassed", "PARK", "rank 0 is awaited at step 9",
    )  # fmt: skip
    await rig.done("UNDO", reason="late")
    assert rig.free()


BROKEN = [
    ("process", "stop"),
    ("process", "settle"),
    ("network", "lock"),
    ("files", "cut"),
    ("images", "dump"),
]


@pytest.mark.parametrize(("driver", "method"), BROKEN)
async def test_a_failing_dump_is_told_and_undone(rig: Rig, driver: str, method: str) -> None:
    await rig.to("PARK")
    getattr(rig, driver).broken.add(method)
    failed = (await rig.order("DUMP", cut="CUT_STEP")).failure
    assert (failed.kind, failed.node, failed.phase) == ("DriverError", "n0", "DUMP")
    assert method in failed.what
    undone = await rig.done("UNDO", reason="failed")
    assert undone.held_ms >= 0
    assert rig.free()


async def test_images_that_lack_a_process_are_refused(rig: Rig) -> None:
    await rig.to("PARK")
    rig.images.pids = (ROOT,)
    failed = (await rig.order("DUMP", cut="CUT_STEP")).failure
    assert str(RANK) in failed.what
    await rig.done("UNDO")
    await rig.to("PARK", "a2")
    rig.images.pids, rig.images.pages = (ROOT, RANK), 0
    assert "no page" in (await rig.order("DUMP", "a2", cut="CUT_STEP")).failure.what
    await rig.done("UNDO", "a2")
    assert rig.free()


async def test_a_tree_that_moves_after_its_dump_is_refused(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    dump = rig.images.dump

    async def woken(root_pid: int, images: Path, *, deadline_s: float) -> DumpStats:
        stats = await dump(root_pid, images, deadline_s=deadline_s)
        rig.process.state = "S"  # somebody's SIGCONT
        return stats

    monkeypatch.setattr(dumping, "SETTLE_S_MAX", 0.01)
    monkeypatch.setattr(rig.images, "dump", woken)
    await rig.to("PARK")
    failure = (await rig.order("DUMP", cut="CUT_STEP")).failure
    assert "changed while it was dumped" in failure.what
    assert f"not stopped: [{ROOT}, {RANK}]" in failure.details
    await rig.done("UNDO")
    assert rig.free()


async def test_a_rank_that_is_not_parked_is_not_dumped(rig: Rig) -> None:
    await rig.to("HOLD")
    failed = (await rig.order("DUMP", cut="CUT_STEP")).failure
    assert (failed.kind, failed.definite) == ("Refused", True)
    assert rig.process.calls.count("stop") == 0


async def test_undo_deletes_what_an_earlier_shim_had_published(rig: Rig) -> None:
    await rig.to("PERSIST")
    rig.worker.published.discard("a1")
    await rig.done("UNDO", "a2")
    assert list(rig.store.published) == ["llm/a1/0"], "another action's is left alone"
    await rig.done("UNDO", "a1")
    assert rig.store.published == {}


async def test_undo_keeps_what_may_be_a_snapshots(rig: Rig) -> None:
    await rig.to("DUMP")
    await rig.done("PERSIST")
    assert rig.process.state == "T"
    await rig.done("UNDO", keep=True)
    assert rig.free()
    assert list(rig.store.published) == ["llm/a1/0"]


async def test_undo_after_persist_deletes_what_was_published(rig: Rig) -> None:
    await rig.to("PERSIST")
    assert rig.store.published
    await rig.done("UNDO")
    assert rig.store.published == {}
    assert rig.free()


def _gone(place: Path) -> None:
    shutil.rmtree(place)


def _cut_short(place: Path) -> None:
    with open(place / "images/pages-1.img", "r+b") as file:
        file.truncate(999)


def _added(place: Path) -> None:
    (place / "images/pages-2.img").write_bytes(b"p")


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (_gone, "is gone from staging"),
        (_cut_short, "images/pages-1.img in staging has 999 bytes, the dump left 1000"),
        (_added, "images/pages-2.img in staging is not of the dump"),
    ],
)
async def test_staging_that_is_not_what_the_dump_left_is_not_published(
    rig: Rig, damage: Callable[[Path], None], said: str
) -> None:
    await rig.to("RESUME")
    damage(rig.staging.place("llm", 0, "a1"))
    failed = (await rig.order("PERSIST")).failure
    assert (failed.kind, said in failed.what, failed.definite) == ("DriverError", True, True)
    assert not rig.store.published
    await rig.done("UNDO")
    assert rig.free()


async def test_staging_that_changes_while_it_is_copied_is_no_snapshots(rig: Rig) -> None:
    await rig.to("DUMP")
    rig.store.hang = asyncio.Event()
    since = rig.give("PERSIST")
    await asyncio.wait_for(rig.store.hanging.wait(), 5)
    _cut_short(rig.staging.place("llm", 0, "a1"))
    rig.store.hang.set()
    failed = (await rig.answer("PERSIST", since)).failure
    assert (failed.kind, "the dump left 1000" in failed.what) == ("DriverError", True)
    await rig.done("UNDO")
    assert rig.store.published == {}


async def test_a_worker_that_died_before_it_was_let_go_is_no_snapshots(rig: Rig) -> None:
    """Its peers may have been dumped after its kernel had closed its connections to them."""
    await rig.to("DUMP")
    rig.process.exit(-9)
    assert "before it was let go" in (await rig.order("PERSIST")).failure.what
    await rig.done("UNDO")
    assert rig.store.published == {}


async def test_a_worker_that_dies_after_it_was_let_go_is_saved_all_the_same(rig: Rig) -> None:
    await rig.to("DUMP")
    await rig.done("RESUME")
    rig.process.exit(1)
    assert (await rig.done("PERSIST")).record.manifest in rig.store.published


async def test_a_failed_persist_leaves_staging_for_the_undo(rig: Rig) -> None:
    from coordinator.core.errors import DriverError

    await rig.to("RESUME")
    rig.store.failure = DriverError("no room left")
    assert (await rig.order("PERSIST")).failure.what == "no room left"
    await rig.done("UNDO")
    assert rig.free()


async def test_undo_that_cannot_be_done_faults_the_worker(rig: Rig) -> None:
    await rig.to("DUMP")
    rig.network.broken.add("unlock")
    failed = (await rig.order("UNDO")).failure
    assert "network lock is on" in failed.what
    assert (rig.worker.state, failed.definite) == ("faulted", False)
    assert rig.process.state == "S"  # what could be let go was let go
    refused = (await rig.order("HOLD", "a2", cut="CUT_STEP")).failure
    assert "faulted" in refused.what


async def test_undo_of_what_was_never_done(rig: Rig) -> None:
    await rig.done("UNDO", "a9")
    assert rig.free()
    await rig.to("HOLD", "a2")
    await rig.done("UNDO", "a9b")  # not the one that holds it
    assert rig.page.hold != 0


async def test_a_worker_that_exits_is_reported_with_its_log(rig: Rig) -> None:
    (rig.worker.directory / "log").write_text("Traceback: it hurts\n")
    await rig.to("HOLD")
    rig.process.exit(3)
    ended = await rig.until(lambda message: message.HasField("exited") and message.exited)
    assert (ended.exit_code, ended.incarnation) == (3, 1)
    assert "it hurts" in ended.log_tail
    gone = (await rig.order("PARK", target=8)).failure
    assert gone.kind == "NotReady"
    await rig.done("UNDO")
    assert (rig.page.hold, rig.worker.action, rig.worker.state) == (0, "", "exited")


def test_the_sockets_of_the_rig_are_of_three_kinds() -> None:
    assert set(SOCKETS.established) == {PEER, OUTSIDE, *INSIDE}
