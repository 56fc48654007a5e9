"""What only tests need: taken from the system, fetched, installed, or said to be missing."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tools import for_tests
from tools.messages import Missing


class Machine:
    """What the machine has, and what it is asked to do."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, root: Path) -> None:
        self.root = root
        self.asked: list[tuple[object, ...]] = []
        self.ids, self.uid = ["debian"], 0
        self.programs: dict[str, Path] = {}
        monkeypatch.setattr(for_tests, "which", self.programs.get)
        monkeypatch.setattr(for_tests, "distribution_ids", lambda: self.ids)
        monkeypatch.setattr(os, "geteuid", lambda: self.uid)
        monkeypatch.setattr(for_tests, "apt_get", lambda *words: self.asked.append(words))
        monkeypatch.setattr(for_tests, "PrivateApt", lambda base, suite: self)

    def update(self) -> None:
        """Of sid's index."""

    def unpack(self, packages: list[str], into: Path) -> None:
        """Put what sid holds there."""
        self.asked.append(("unpack", *packages))
        program(into / "usr" / "bin" / "promtool", "3.5.3")


def program(path: Path, version: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\necho 'promtool, version {version}+ds1 (branch: x)'\n")
    path.chmod(0o755)
    return path


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Machine:
    return Machine(monkeypatch, tmp_path)


def test_promtool_is_fetched_once_and_alone(machine: Machine) -> None:
    tools = machine.root / ".tools"
    for_tests.ensure_promtool(tools)
    for_tests.ensure_promtool(tools)
    assert machine.asked == [("unpack", "promtool")]
    assert sorted(path.name for path in tools.rglob("*")) == ["bin", "promtool"]


@pytest.mark.parametrize(("version", "taken"), [("2.53.0", True), ("2.9.2", False)])
def test_the_systems_own_is_taken_when_new_enough(
    machine: Machine, version: str, taken: bool
) -> None:
    machine.programs["promtool"] = program(machine.root / "usr" / "promtool", version)
    for_tests.ensure_promtool(machine.root / ".tools")
    assert (machine.root / ".tools" / "bin" / "promtool").is_symlink() == taken
    assert bool(machine.asked) != taken


def test_chromium_is_installed_where_it_is_missing(machine: Machine) -> None:
    for_tests.ensure_chromium()
    assert machine.asked[0] == ("update",)
    assert set(for_tests.CHROMIUM_PACKAGES) <= set(machine.asked[1])
    machine.asked.clear()
    machine.programs |= dict.fromkeys(for_tests.CHROMIUM, Path("/usr/bin/x"))
    for_tests.ensure_chromium()
    assert machine.asked == []


def test_who_is_not_root_is_told_what_root_can_do(machine: Machine) -> None:
    machine.uid = 1000
    with pytest.raises(Missing, match="apt-get install chromium"):
        for_tests.ensure_chromium()
    assert machine.asked == []


def test_elsewhere_it_is_said_and_nothing_fails(
    machine: Machine, capsys: pytest.CaptureFixture[str]
) -> None:
    machine.ids = ["ubuntu", "debian"]
    for_tests.ensure_for_tests(machine.root)
    said = capsys.readouterr().out
    assert "promtool is not here, and tests that need it skip" in said
    assert "checkpointctl is not here, and tests that need it skip" in said
    assert "Chromium is not here, and tests that need it skip" in said
    assert machine.asked == []
