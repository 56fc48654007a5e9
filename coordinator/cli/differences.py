"""What differs between two snapshots of a worker, for people."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Group, RenderableType
from rich.text import Text

from coordinator.api.words import bytes_text
from coordinator.cli.inside import printed
from coordinator.cli.tables import table
from worker_shim.reading.comparing import Change, Growth, WorkerDiff
from worker_shim.reading.page_count import PageCount

SHOWN_MAX = 20  # of each part; --all shows the rest


def diff_view(diff: WorkerDiff, *, everything: bool) -> Group:
    """Every part in which something differs; one line when nothing does."""
    parts: list[RenderableType] = []
    for title, changes in (
        ("FACT", diff.facts),
        ("RANK", diff.ranks),
        ("GPU", diff.gpus),
        ("VERSION", diff.versions),
        ("PROGRAM", diff.programs),
        ("PROCESS", diff.processes),
    ):
        parts += _changes(title, changes, everything)
    parts += _growth(diff.memory)
    parts += _changes("AREA", diff.areas, everything)
    parts += _changes("SOCKET", diff.sockets, everything)
    parts += _changes("FILE", diff.files, everything)
    if diff.pages is not None:
        parts += _pages(diff.pages)
    if not parts:
        parts = [Text("nothing differs", style="dim")]
    head = Text(f"worker {diff.worker}", style="bold")
    return Group(head, *(each for part in parts for each in (part, Text())))


def _changes(title: str, changes: Sequence[Change], everything: bool) -> list[RenderableType]:
    if not changes:
        return []
    rows = table(title, "BEFORE", "AFTER")
    shown = changes if everything else changes[:SHOWN_MAX]
    for change in shown:
        rows.add_row(
            printed(change.name), printed(change.before) or "-", printed(change.after) or "-"
        )
    left_out = len(changes) - len(shown)
    more = [Text(f"… and {left_out} more (--all)", style="dim")] if left_out else []
    return [Group(rows, *more)]


def _growth(changes: Sequence[Growth]) -> list[RenderableType]:
    rows = table(
        "MEMORY", "BEFORE", "AFTER", "IN IMAGES BEFORE", "AFTER ",
        right=("BEFORE", "AFTER", "IN IMAGES BEFORE", "AFTER "),
    )  # fmt: skip
    for change in changes:
        rows.add_row(
            change.kind,
            bytes_text(change.before_bytes),
            bytes_text(change.after_bytes),
            bytes_text(change.dumped_before_bytes),
            bytes_text(change.dumped_after_bytes),
        )
    return [rows] if changes else []


def _pages(count: PageCount) -> list[RenderableType]:
    if not count.changed + count.new + count.gone:
        return []
    rows = table(
        "PAGES", "SAME", "CHANGED", "NEW", "GONE", "OF CHANGED AND NEW KNOWN",
        right=("SAME", "CHANGED", "NEW", "GONE", "OF CHANGED AND NEW KNOWN"),
    )  # fmt: skip
    counts = (count.same, count.changed, count.new, count.gone, count.known)
    rows.add_row(f"{count.before} -> {count.after}", *(str(each) for each in counts))
    return [rows]
