"""The tables of design/failures.md, as rows that a test can hold against what happened."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

PAGE = Path(__file__).resolve().parents[3] / "design" / "failures.md"
PHASES = (
    "ADMIT", "HOLD", "PARK", "DUMP", "PERSIST", "COMMIT",
    "ADMIT, restore", "FETCH", "CLEAR", "RESTORE", "RELEASE",
)  # fmt: skip
WORKERS = ("run on", "run again, told to", "run again by themselves", "run restored", "are gone")
ENDS = ("COMMITTED", "ABORTED", "RUNNING", "FAILED", "never was")


@dataclass(frozen=True)
class Row:
    """What the page promises for one phase under one kind of absence."""

    phase: str
    coordinator: str
    workers: str
    ends: tuple[str, ...]  # any of these
    reads: tuple[str, ...]  # any of these is part of what the operator reads


def rows(heading: str) -> dict[str, Row]:
    """The table below a heading of the page, by phase; raises AssertionError for a broken one."""
    text = PAGE.read_text()
    found = re.search(rf"^## {re.escape(heading)}\n(.*?)(?=^## |\Z)", text, re.M | re.S)
    assert found is not None, f"{PAGE.name} has no heading {heading!r}"
    lines = [line for line in found[1].splitlines() if line.startswith("|")][2:]
    table: dict[str, Row] = {}
    for line in lines:
        phase, coordinator, workers, ends, reads = (
            cell.strip() for cell in line.strip("|").split("|")
        )
        assert workers in WORKERS, line
        row = Row(
            phase,
            coordinator,
            workers,
            tuple(ends.split(" or ")),
            tuple(re.findall(r"`([^`]+)`", reads)),
        )
        assert set(row.ends) <= set(ENDS), line
        assert row.reads, line
        table[phase] = row
    assert tuple(table) == PHASES, f"{heading}: {tuple(table)}"
    return table
