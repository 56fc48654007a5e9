"""A worker whose command is started from scratch, over fake drivers; and what may be told of it."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest
from allstop.v1 import shim_pb2

from coordinator.codec import from_proto
from coordinator.core.errors import DriverError, Where
from coordinator.core.model import AddressMove, WorkerRecord
from tests.unit.agent.rig import PEER, Rig
from worker_shim.agent.launched import moved, named_in, require_startable
from worker_shim.agent.options import WorkerSpec
from worker_shim.images import manifest as manifests
from worker_shim.images.port import Launch

SECRET = "hunter2"
ENV = {
    "PATH": "/usr/bin:/bin",
    "TOKEN": SECRET,
    "MASTER_ADDR": "node-0.example",
    "PEERS": "10.0.0.1:1,10.0.0.2:2,127.0.0.1,0.0.0.0,1.2.3.4.5,999.1.1.1",
    "SIX": "[fd00::1]:29500 ::1 12:34:56",
    "CUDA_VISIBLE_DEVICES": "GPU-aaaaaaaa-0000-4000-8000-000000000000,1",
}


def launch(cwd: Path, *arguments: str) -> Launch:
    return Launch((sys.executable, "train.py", *arguments), dict(ENV), str(cwd), 8)


async def saved(rig: Rig, tmp_path: Path) -> shim_pb2.OrderResult:
    rig.worker.launched = launch(tmp_path, "--master-addr", "10.0.0.1")
    return await rig.to("PERSIST")


async def started(rig: Rig, saved: shim_pb2.OrderResult, last: str = "RELEASE") -> None:
    move = AddressMove("10.0.0.1", "10.0.0.7")
    await rig.done("FETCH", "r1", record=saved, cold=True)
    for phase, detail in {
        "CLEAR": {"record": saved},
        "RESTORE": {"record": saved, "incarnation": 2, "workers": 1, "addresses": (move,)},
        "RELEASE": {},
    }.items():
        await rig.done(phase, "r1", **detail)  # type: ignore[arg-type]
        if phase == last:
            return


async def test_from_fetch_to_release(rig: Rig, tmp_path: Path) -> None:
    result = await saved(rig, tmp_path)
    rig.hook.page.close = lambda: rig.hook.renewed.append({"closed": 1})  # type: ignore[method-assign]
    await rig.done("FETCH", "r1", record=result, cold=True)
    assert rig.process.state == "S"  # the old worker has not noticed
    assert not rig.staged()  # no image was brought
    await rig.done("CLEAR", "r1", record=result, connections=(PEER,))
    assert (rig.process.state, rig.network.locks) == ("", {})
    await started(rig, result, "RESTORE")
    assert (rig.worker.state, rig.worker.action, rig.worker.incarnation) == ("restored", "r1", 2)
    assert rig.process.state == ""  # nothing runs before all workers are ready
    released = await rig.done("RELEASE", "r1")
    assert released.root_pid == rig.worker.root_pid != 0
    spec = rig.process.launched
    assert spec is not None
    assert tuple(spec.argv[-2:]) == ("--master-addr", "10.0.0.7")
    assert spec.env["PEERS"].startswith("10.0.0.7:1,10.0.0.2:2,")
    assert spec.env["TOKEN"] == SECRET
    assert rig.hook.renewed == [{"closed": 1}]  # no page was put back: it has one of its own
    assert rig.page.incarnation == 2
    assert rig.worker.incarnation == 2
    assert rig.free()
    assert rig.images.calls.count("restore") == 0
    assert rig.files.rolled_back == []
    again = await rig.to("PERSIST", "a2")
    place = again.record.manifest
    kept = manifests.decode(rig.store.published[place][0], again.record.manifest_digest)
    assert kept.launch is not None
    assert kept.launch.argv[-1] == "10.0.0.7"


async def test_on_a_spare(rig: Rig, tmp_path: Path) -> None:
    result = await saved(rig, tmp_path)
    await rig.agent.stop()
    assert rig.agent.states() == ()
    await started(rig, result)
    assert rig.free()


async def test_secrets_stay_in_the_image_store(rig: Rig, tmp_path: Path) -> None:
    result = await saved(rig, tmp_path)
    assert SECRET.encode() not in result.SerializeToString()
    record = from_proto(result.record, WorkerRecord)
    assert record.named == (
        "CUDA_VISIBLE_DEVICES=GPU-aaaaaaaa-0000-4000-8000-000000000000",
        "MASTER_ADDR=node-0.example",
        "PEERS=10.0.0.1",
        "PEERS=10.0.0.2",
        "SIX=fd00::1",
    )
    kept = rig.store.published[record.manifest][0]
    assert SECRET.encode() in kept


async def test_what_a_restored_worker_was_started_with_is_kept_on(rig: Rig, tmp_path: Path) -> None:
    result = await saved(rig, tmp_path)
    await rig.back_to("RELEASE", result)
    rig.worker.launched, kept = None, rig.worker.launched
    assert kept == launch(tmp_path, "--master-addr", "10.0.0.1")
    again = await rig.to("PERSIST", "a2")  # a snapshot of a shim that never knew it
    refused = await rig.order("FETCH", "r2", record=again, cold=True)
    assert "does not say how its worker was started" in refused.failure.what
    assert rig.process.state == "S"


async def test_the_nccl_mode_is_the_one_that_was_asked_for(rig: Rig, tmp_path: Path) -> None:
    library = tmp_path / "libnccl-checkpoint-shim.so"
    library.touch()
    asked = WorkerSpec("llm", 0, 1, (sys.executable,), ENV, tmp_path, nccl="rebuild")
    rig.worker.launched = replace(asked, nccl_shim=library).launch
    result = await rig.to("PERSIST")
    rig.worker.launched = None
    await started(rig, result)
    spec = rig.process.launched
    assert spec is not None
    assert spec.env["ALLSTOP_NCCL_MODE"] == "rebuild"
    assert spec.env["LD_PRELOAD"] == str(library)
    kept = rig.worker.launched
    assert kept is not None
    assert (kept.nccl, kept.nccl_shim) == ("rebuild", str(library)), "for the next one"

    library.unlink()
    refused = await rig.order("FETCH", "r2", record=result, cold=True)
    assert "checkpoint shim libnccl-checkpoint-shim.so is not found" in refused.failure.what
    assert rig.process.state == "S"


def test_a_manifest_of_an_older_shim_has_the_mode_chosen_anew() -> None:
    old = b'{"argv":["python"],"env":{},"cwd":"/","slots":8}'
    assert msgspec.json.decode(old, type=Launch).nccl == "auto"


@pytest.mark.parametrize("what", ["program", "working directory"])
async def test_what_is_missing_is_told_before_anything_is_cleared(
    rig: Rig, tmp_path: Path, what: str
) -> None:
    own = launch(tmp_path)
    if what == "program":
        own = Launch(("gone", "x"), own.env, own.cwd, 8)
    else:
        own = Launch(own.argv, own.env, str(tmp_path / "gone"), 8)
    rig.worker.launched = own
    result = await rig.to("PERSIST")
    refused = await rig.order("FETCH", "r1", record=result, cold=True)
    assert f"the {what}" in refused.failure.what
    assert rig.process.state == "S"


async def test_a_start_that_fails_is_put_away(rig: Rig, tmp_path: Path) -> None:
    result = await saved(rig, tmp_path)
    await started(rig, result, "RESTORE")
    rig.process.broken.add("launch")
    failed = await rig.order("RELEASE", "r1")
    assert "told to fail: launch" in failed.failure.what
    await rig.done("UNDO", "r1", kill=True)
    assert (rig.worker.state, rig.process.state, rig.worker.action) == ("", "", "")
    rig.process.broken.clear()
    await rig.done("FETCH", "r2", record=result, cold=True)


async def test_without_a_word_it_is_put_away_by_itself(rig: Rig, tmp_path: Path) -> None:
    result = await saved(rig, tmp_path)
    await started(rig, result, "CLEAR")
    since = rig.give("RESTORE", "r1", record=result, incarnation=2, workers=1, hold_s=0.3)
    await rig.answer("RESTORE", since, "r1")
    undone = await rig.answer("UNDO", since, "r1")
    assert not undone.HasField("failure")
    assert (rig.worker.state, rig.process.state) == ("", "")
    late = await rig.order("RELEASE", "r1")
    assert late.HasField("failure")


async def test_a_worker_that_was_started_and_let_go_is_put_away_too(
    rig: Rig, tmp_path: Path
) -> None:
    result = await saved(rig, tmp_path)
    await started(rig, result)
    await rig.done("UNDO", "r1", kill=True)
    assert (rig.worker.state, rig.process.state) == ("", "")


def test_addresses_that_change_places_do_so(tmp_path: Path) -> None:
    both = launch(tmp_path, "10.0.0.1,10.0.0.2", "10.0.0.12")
    swapped = moved(both, {"10.0.0.1": "10.0.0.2", "10.0.0.2": "10.0.0.1"})
    assert swapped.argv[-2:] == ("10.0.0.2,10.0.0.1", "10.0.0.12")
    assert moved(both, {}) is both


def test_a_long_environment_is_bounded() -> None:
    many = {f"V{number}": f"10.1.{number // 250}.{number % 250 + 1}" for number in range(500)}
    assert len(named_in(many)) == 64
    assert named_in({"LONG": "x" * 20_000 + " 10.0.0.1"}) == ()


def test_programs_are_looked_for_as_they_will_be(tmp_path: Path) -> None:
    script = tmp_path / "run.sh"
    script.write_text("#!/bin/sh\n")
    near = Launch(("./run.sh",), {"PATH": "/nowhere"}, str(tmp_path), 1)
    with pytest.raises(DriverError, match=r"the program \./run\.sh is missing"):
        require_startable(near, Where())
    script.chmod(0o755)
    require_startable(near, Where())
    with pytest.raises(DriverError, match=r"the program run\.sh"):
        require_startable(Launch(("run.sh",), {"PATH": "/nowhere"}, str(tmp_path), 1), Where())
    require_startable(Launch(("run.sh",), {"PATH": str(tmp_path)}, str(tmp_path), 1), Where())
