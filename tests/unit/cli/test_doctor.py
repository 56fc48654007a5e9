"""What the examination says of machines that lack something."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from coordinator.cli.main import main
from worker_shim import examination
from worker_shim.examination import Places, Verdict, examine


@pytest.fixture
def places(tmp_path: Path) -> Places:
    return Places(tmp_path / "store", tmp_path / "staging", tmp_path / "run")


def status(tmp_path: Path, *bits: int) -> Path:
    path = tmp_path / "status"
    path.write_text(f"Name:\tx\nCapEff:\t{sum(1 << bit for bit in bits):016x}\n")
    return path


async def found(places: Places, what: str) -> examination.Line:
    return next(line for line in await examine(places) if line.what == what)


async def test_every_missing_capability_is_named(
    places: Places, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    all_of_them = examination.CAPABILITIES | examination.USEFUL_CAPABILITIES
    without = [bit for name, bit in all_of_them.items() if name not in ("SYS_TIME", "NET_ADMIN")]
    monkeypatch.setattr(examination, "STATUS", status(tmp_path, *without))
    line = await found(places, "capabilities")
    assert line.verdict is Verdict.FIX
    assert "SYS_TIME" in line.found
    assert "--cap-add NET_ADMIN" in line.advice
    monkeypatch.setattr(examination, "STATUS", status(tmp_path, *all_of_them.values()))
    assert (await found(places, "capabilities")).verdict is Verdict.OK
    needed = examination.CAPABILITIES.values()
    monkeypatch.setattr(examination, "STATUS", status(tmp_path, *needed))
    assert (await found(places, "capabilities")).verdict is Verdict.WARNING


@pytest.mark.parametrize(
    ("release", "verdict"),
    [("6.18.44-x", "ok"), ("5.11.0-amd64", "ok"), ("5.10.0-28-amd64", "fix"), ("4.18.0", "fix")],
)
async def test_an_old_kernel_is_told(
    places: Places, monkeypatch: pytest.MonkeyPatch, release: str, verdict: str
) -> None:
    monkeypatch.setattr(examination.platform, "release", lambda: release)
    assert (await found(places, "kernel")).verdict == verdict


async def test_no_criu_is_a_line_and_not_the_end(places: Places) -> None:
    lines = await examine(Places(places.store, places.staging, places.run, Path("/no/criu")))
    assert len(lines) == len(examination.CHECKS)
    (line,) = [each for each in lines if each.what == "criu"]
    assert line.verdict is Verdict.FIX
    assert "/no/criu" in line.found
    assert line.advice


def test_the_command_ends_with_14_and_names_what_to_fix(
    capfd: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    line = ["doctor", "--criu", "/no/criu", "--store", str(tmp_path), "-o", "json"]
    assert main([*line, "--coordinator", f"unix:{tmp_path}/none"]) == 14
    out, told = capfd.readouterr()
    first, second = out.splitlines()
    lines = {each["what"]: each for each in json.loads(first)["lines"]}
    assert lines["criu"]["verdict"] == "fix"
    assert lines["coordinator"]["verdict"] == "warning"
    assert json.loads(second)["error"]["kind"] == "SetupError"
    assert "criu" in told
