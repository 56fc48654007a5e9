"""Files on their way through a worker's orders: chosen, recorded, looked at, put back, told."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.unit.agent.rig import Rig
from worker_shim.agent import putting_back
from worker_shim.criu.port import NamedFile
from worker_shim.files.keeping import Keep, Keeping, Rule
from worker_shim.files.port import Expected, OpenFile, Put
from worker_shim.images import manifest as manifests

TAIL = OpenFile(
    "/data/big", 10_000, 0o644, kept="tail", kept_from=9_000, tail="file-0", why="chosen"
)
NONE = OpenFile("/data/state", 7, 0o644, kept="none", kept_from=7)
WHOLE = OpenFile("/data/log", 5, 0o644, "file-1", kept="copy")
PLACE = OpenFile("/data", 0, 0o755, role="directory")


async def test_what_is_not_whole_stands_in_the_record(rig: Rig) -> None:
    rig.files.files = (PLACE, TAIL, NONE, WHOLE)
    record = (await rig.to("PERSIST")).record
    assert record.files == 3
    told = [
        (file.path, file.size_bytes, file.kept_bytes, file.why) for file in record.partial_files
    ]
    assert told == [("/data/big", 10_000, 1_000, "chosen"), ("/data/state", 7, 0, "")]


async def test_of_many_files_the_record_has_the_first() -> None:
    many = [OpenFile(f"/data/{number}", 7, 0o644, kept="none") for number in range(100)]
    assert len(putting_back.recorded(many)["partial_files"]) == putting_back.PARTIAL_MAX


async def test_before_the_hold_it_is_said_and_room_is_asked_for(rig: Rig) -> None:
    rig.files.expected = Expected(0, (TAIL, NONE))
    held = await rig.to("HOLD")
    (finding,) = (each for each in held.findings if each.code == "files_partial")
    assert "/data/big (10 kB, only its last 1 kB: chosen)" in finding.text
    assert "/data/state (7 B, only its size)" in finding.text
    await rig.done("UNDO")
    rig.files.broken.add("expect")
    refused = await rig.order("HOLD", "a2", hold_s=5.0, cut="CUT_STEP")
    assert any(line.startswith("files: told to fail") for line in refused.failure.details)
    rig.files.broken.clear()
    rig.files.expected = Expected(1 << 60)
    refused = await rig.order("HOLD", "a3", hold_s=5.0, cut="CUT_STEP")
    assert any(line.startswith("staging_space") for line in refused.failure.details)


async def test_the_choice_goes_with_the_worker(rig: Rig) -> None:
    chosen = Keeping((Rule(Keep.TAIL, "/data/*"), Rule(Keep.NONE)), 5, 6)
    rig.worker.keeping = chosen  # as `launch` takes it from what it is to start
    saved = await rig.to("PERSIST")
    assert rig.files.keeping == [chosen]
    encoded = rig.store.published[saved.record.manifest][0]
    assert manifests.decode(encoded, saved.record.manifest_digest).keeping == chosen
    rig.worker.keeping = Keeping()
    await rig.back_to("RELEASE", saved)
    assert rig.worker.keeping == chosen


@pytest.mark.parametrize("driver", ["files", "images"])
async def test_a_file_that_cannot_come_back_does_not_cost_the_running_job(
    rig: Rig, driver: str, tmp_path: Path
) -> None:
    saved = await rig.to("PERSIST")
    if driver == "files":
        rig.files.broken.add("check")
    else:
        (tmp_path / "short").write_bytes(b"x")
        names = [NamedFile(str(tmp_path / "gone"), 9), NamedFile(str(tmp_path / "short"), 9)]
        here = [NamedFile(str(tmp_path / "ghost"), 9, made=True), NamedFile("/dev/nvidia7")]
        rig.images.names = (*here, *names)
    refused = await rig.order("FETCH", "r1", record=saved)
    if driver == "images":
        assert f"{tmp_path}/gone is missing on this node" in refused.failure.what
        assert "(and 1 more files)" in refused.failure.what
        assert "is 1 bytes long on this node and was 9" in refused.failure.details[1]
    assert refused.failure.node == "n0"
    assert rig.worker.alive
    assert rig.files.rolled_back == []


async def test_what_was_done_to_files_is_told(rig: Rig) -> None:
    rig.files.files = (WHOLE,)
    saved = await rig.to("PERSIST")
    puts = [Put(f"/data/{number}", "cut", f"/data/{number}.after-a1", 3) for number in range(70)]
    rig.files.told = (Put("/data/big", "hole", "", 9_000), *puts)
    await rig.back_to("CLEAR", saved)
    back = await rig.done("RESTORE", "r1", record=saved, incarnation=2, workers=1)
    assert rig.files.checked == [(WHOLE,)]
    assert (len(back.files), back.files_unnamed) == (putting_back.TOLD_MAX, 7)
    assert (back.files[0].what, back.files[0].size_bytes, back.files[0].node) == (
        "hole",
        9_000,
        "n0",
    )
    assert back.files[1].aside == "/data/0.after-a1"
    assert "70 files kept aside, made anew with a hole: /data/big" in back.note


async def test_what_was_kept_aside_is_told_also_where_criu_fails(rig: Rig) -> None:
    saved = await rig.to("PERSIST")
    rig.files.told = (Put("/data/log", "cut", "/data/log.after-a1", 3),)
    rig.images.broken.add("restore")
    await rig.back_to("CLEAR", saved)
    failed = await rig.order("RESTORE", "r1", record=saved, incarnation=2)
    line = "/data/log: its end, 3 bytes, is kept as /data/log.after-a1"
    assert line in failed.failure.details
