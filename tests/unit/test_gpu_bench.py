"""What is measured on a GPU: sizes that fit, what is missing in words, and where figures go."""

from __future__ import annotations

import json
from copy import deepcopy
from pathlib import Path

import pytest

from bench.gpu import machine, ranks
from bench.gpu.__main__ import written
from bench.gpu.measuring import SIZES_MIB, Steps, Taken, sizes_mib
from coordinator.core.errors import SetupError
from tests.fakes.gpu.build import said
from tests.gpu.probe import differences
from worker_shim.cuda.fake import FakeCuda
from worker_shim.process.proc import read_stat

GIB = 1 << 30


def test_sizes_are_those_that_gpu_host_and_disk_have_room_for() -> None:
    alone = sizes_mib(1, 140 * GIB, 1000 * GIB, 0)
    assert alone == [*SIZES_MIB, 98 << 10]
    assert sizes_mib(2, 140 * GIB, 1000 * GIB, 0)[-1] == 49 << 10
    assert sizes_mib(1, 140 * GIB, 100 * GIB, 0)[-1] == 40 << 10, "the host's memory"
    assert sizes_mib(1, 140 * GIB, 1000 * GIB, 10 * GIB) == [1 << 10, 4 << 10, 8 << 10], "the disk"
    assert sizes_mib(1, GIB, 1000 * GIB, 0) == [716]
    assert sizes_mib(1, 0, GIB, 0) == []


@pytest.mark.parametrize(
    ("driver", "found", "words"),
    [
        ("", ("library",), "there is no NVIDIA driver here"),
        ("565.57.01", ("library",), "NVIDIA driver 565.57.01 is here, and 570 or newer is needed"),
        ("580.95.05", (), "neither cuda.bindings"),
        ("580.95.05", ("program",), ""),
    ],
)
def test_what_is_missing_is_said(
    monkeypatch: pytest.MonkeyPatch, driver: str, found: tuple[str, ...], words: str
) -> None:
    monkeypatch.setattr(machine, "engines", lambda: found)
    told = machine.lacking(driver)
    assert words in told
    assert bool(told) == bool(words)


def test_figures_go_to_a_file_named_for_gpu_driver_and_day(tmp_path: Path) -> None:
    steps = Steps(1.0, 100.0, None, None, 200.0, 2.0)
    found = {
        "model": "NVIDIA H200 (SXM)",
        "driver": "580.95.05",
        "date": "2026-11-30",
        "steps": [Taken("library", 2, 1024, 50.0, 60.0, steps)],
        "against_by_hand": [],
    }
    path = written(found, tmp_path)
    assert path.name == "gpu-NVIDIA-H200-SXM-580.95.05-2026-11-30.json"
    (taken,) = json.loads(path.read_text())["steps"]
    assert taken["save_gb_per_s"] == pytest.approx(2 * GIB / 100 / 1e6, abs=0.001)
    assert "dump_gb_per_s" not in taken


async def test_a_rank_that_never_answers_is_no_endless_wait(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ranks, "ANSWER_S", 0.2)
    monkeypatch.setattr(ranks, "LOOK_S", 0.05)
    monkeypatch.setattr(ranks, "END_S", 0.1)
    async with ranks.Ranks(FakeCuda(), tmp_path / "ranks") as them:
        with pytest.raises(SetupError, match="rank 0 does not answer"):
            await them.start(("sleep", "60"))


class Noting(FakeCuda):
    """Knows every process but the root as one on a device."""

    async def processes(self, tree, *, deadline_s):  # type: ignore[no-untyped-def]
        self.pids = tree.pids[1:]
        return await super().processes(tree, deadline_s=deadline_s)


async def test_ranks_that_do_not_end_are_taken_off_their_device_before_they_are_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ranks, "END_S", 0.1)
    cuda = Noting()
    async with ranks.Ranks(cuda, tmp_path / "ranks") as them:
        await them.start(("sh", "-c", "echo ready; exec sleep 60"))
        (process,) = await them.gpu_processes()
    assert cuda.done == [("lock", process.pid), ("checkpoint", process.pid)]
    assert read_stat(process.pid) is None


def test_what_a_machine_says_otherwise_is_shown_row_by_row() -> None:
    found = deepcopy(said())
    assert differences(found) == []
    found["cases"]["lock_while_locked"]["exit"] = 1
    del found["words"]["600"]
    found["help"] = "--action lock"
    words, case, text = differences(found)
    assert words == "words 600: the file has device not ready, this machine None"
    assert case.startswith("cases lock_while_locked: the file has {'result': 401")
    assert text.endswith("--action lock")
