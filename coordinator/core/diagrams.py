"""Mermaid state diagrams of the rounds, drawn from the tables that the coordinator runs on.

`python -m coordinator.core.diagrams > design/state-machines.md` draws them anew; a test fails when
the file in `design/` differs.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from enum import StrEnum
from typing import TypeVar

from coordinator.core import checkpoint, cleaning, restore
from coordinator.core.attempt import Attempt
from coordinator.core.cleaning import Cleaning
from coordinator.core.events import Event
from coordinator.core.returning import Restore
from coordinator.core.table import Ignored, Row, Table

S = TypeVar("S", bound=StrEnum)


def page() -> str:
    """The whole of `design/state-machines.md`."""
    return "\n".join(
        [
            "# State machines",
            "",
            "Drawn from the tables in `coordinator/core` by `python -m coordinator.core.diagrams`;",
            "do not edit. What brings an action into a state stands at the arrow. An event that",
            "stands at no arrow leaves the action where it is, or is ignored for the reason below,",
            "or is illegal: it raises and changes nothing.",
            "",
            *_section("Checkpoint", checkpoint.TRANSITIONS, Attempt.ENDS),
            *_section("Restore", restore.TRANSITIONS, Restore.ENDS),
            *_section("Cleaning", cleaning.TRANSITIONS, Cleaning.ENDS),
        ]
    )


def _section(title: str, table: Table[S], ends: frozenset[StrEnum]) -> list[str]:
    lines = [f"## {title}", "", "```mermaid", "stateDiagram-v2"]
    first = next(iter(table))
    lines.append(f"    [*] --> {first}")
    for state, rows in table.items():
        for target, names in _arrows(state, rows).items():
            lines.append(f"    {state} --> {target}: {', '.join(names)}")
    lines += [f"    {state} --> [*]" for state in table if state in ends]
    lines += ["```", "", "| state | ignored | because |", "|---|---|---|"]
    for state, rows in table.items():
        for reason, names in _ignored(rows).items():
            lines.append(f"| {state} | {', '.join(names)} | {reason} |")
    return [*lines, ""]


def _arrows(state: StrEnum, rows: Mapping[type[Event], Row | Ignored]) -> dict[StrEnum, list[str]]:
    arrows: dict[StrEnum, list[str]] = {}
    for event, row in rows.items():
        targets = row.to if isinstance(row, Row) else ()
        for target in targets:
            if target is not state:
                arrows.setdefault(target, []).append(event.__name__)
    return arrows


def _ignored(rows: Mapping[type[Event], Row | Ignored]) -> dict[str, list[str]]:
    ignored: dict[str, list[str]] = {}
    for event, row in rows.items():
        if isinstance(row, Ignored):
            ignored.setdefault(row.reason, []).append(event.__name__)
    return ignored


if __name__ == "__main__":
    sys.stdout.write(page())
