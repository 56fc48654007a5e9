"""The page for users is drawn from the table, and the verb tells the same."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from coordinator.cli import doctor
from coordinator.cli.main import main
from coordinator.core.model import Severity
from worker_shim import examination
from worker_shim.compatibility.features import NodeFeature, Seen
from worker_shim.compatibility.node import NodeSight
from worker_shim.compatibility.page import page, told
from worker_shim.compatibility.situation import Situation
from worker_shim.compatibility.table import table
from worker_shim.examination import GpuSight, Places, Verdict, examine

DRAWN = Path(__file__).parents[3] / "docs" / "gpus.md"
OLD = NodeSight(
    "x86_64", {"driver": ("550.54.14",)}, {NodeFeature.MPS_DAEMON: (Seen("pid 9 is its daemon"),)}
)
GOOD = NodeSight("x86_64", {"driver": ("590.44.01",), "compute": ("9.0",)})


def stand(monkeypatch: pytest.MonkeyPatch, sight: NodeSight, engine: str) -> None:
    """Let the machine be one with such GPUs."""

    async def seen(gpu_engine: str) -> GpuSight:
        assert gpu_engine == "auto"
        return GpuSight(sight, engine)

    monkeypatch.setattr(examination, "sight_of_node", seen)


def test_the_page_is_that_of_the_table() -> None:
    assert DRAWN.read_text() == page(), "python -m worker_shim.compatibility.page > docs/gpus.md"


def test_every_row_has_a_whole_sentence_without_a_worker() -> None:
    for row in told():
        assert "{" not in row.words + row.advice, row.code
        assert "()" not in row.words, row.code
        assert "  " not in row.words, row.code
        assert row.source


def test_the_verb_prints_every_row_and_what_applies_here(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    stand(monkeypatch, OLD, "program")
    assert main(["doctor", "--matrix", "-o", "json"]) == 0
    rows = {row["code"]: row for row in json.loads(capfd.readouterr().out)["rows"]}
    assert set(rows) == {row.code for row in table().row}
    assert rows["driver_too_old"]["here"] == "yes"
    assert rows["driver_too_old"]["driver"] == "<570"
    assert rows["mps_daemon"]["here"] == "yes"
    assert rows["driver_595_71_kill"]["here"] == "no"
    assert rows["infiniband"]["here"] == "depends"
    assert rows["mig_device"]["verdict"] == "refuse"
    assert rows["cuda_graphs"]["source"].startswith("nccl#2351")
    assert main(["doctor", "--matrix"]) == 0
    printed = capfd.readouterr().out
    assert all(row.about.split()[0] in printed for row in table().row)


def test_a_machine_without_a_driver_shows_rows_that_nobody_judged(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    stand(monkeypatch, NodeSight("x86_64", {"driver": ()}), "")
    assert main(["doctor", "--matrix", "-o", "json"]) == 0
    assert {row["here"] for row in json.loads(capfd.readouterr().out)["rows"]} == {""}
    assert {row.here for row in told(Situation("x86_64", has_tree=False))} == {"no", "depends"}


def test_verdicts_have_a_colour() -> None:
    assert {str(verdict) for verdict in (*Severity, *Verdict)} <= set(doctor.STYLES)


async def test_the_doctor_tells_what_speaks_against_the_node(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    places = Places(tmp_path, tmp_path, tmp_path)
    stand(monkeypatch, OLD, "program")
    lines = {line.what: line for line in await examine(places)}
    assert lines["GPUs"].verdict is Verdict.OK
    assert "driver 550.54.14, GPU state is saved through its program" in lines["GPUs"].found
    assert lines["GPUs"].advice == "allstop doctor --matrix"
    assert lines["driver"].verdict is Verdict.FIX
    assert "550.54.14" in lines["driver"].found
    assert lines["MPS"].verdict is Verdict.WARNING
    assert "pid 9" in lines["MPS"].found
    assert "NVLS (NVLink multicast)" not in lines, "a row that asks for something of a worker"
    stand(monkeypatch, GOOD, "")
    lines = {line.what: line for line in await examine(places)}
    assert lines["GPUs"].verdict is Verdict.WARNING
    assert "driver" not in lines
    stand(monkeypatch, NodeSight("x86_64", {"driver": ()}), "")
    lines = {line.what: line for line in await examine(places)}
    assert lines["GPUs"].found == "no NVIDIA driver: workers without GPUs"
