"""What a running checkpoint or restore looks like: one row per phase, with who is still awaited."""

from __future__ import annotations

from dataclasses import dataclass, field

from coordinator.api.values import ActionEvent, Awaited
from coordinator.api.words import bytes_text, duration_text

FINAL_STATES = ("COMMITTED", "ABORTED", "RUNNING", "FAILED", "DONE")
FAILED_STATES = ("ABORTED", "FAILED", "ABORTING", "FAILING")
AWAITED_SHOWN_MAX = 4
RANKS_SHOWN_MAX = 8


@dataclass
class Row:
    """One phase."""

    state: str
    started_ms: int
    ended_ms: int | None = None
    expected: int = 0
    done: int = 0
    reason: str = ""
    awaited: list[str] = field(default_factory=list)
    done_bytes: int = 0
    total_bytes: int = 0

    @property
    def failed(self) -> bool:
        """True for the phases of giving up."""
        return self.state in FAILED_STATES

    @property
    def share(self) -> float:
        """How much of the phase is done, 0 to 1."""
        if self.ended_ms is not None:
            return 1.0
        if self.total_bytes:
            return min(1.0, self.done_bytes / self.total_bytes)
        return self.done / self.expected if self.expected else 0.0

    def detail(self) -> str:
        """Who is awaited and how many bytes moved, or the reason once the phase is over."""
        if self.ended_ms is not None:
            return self.reason if self.failed else ""
        parts = []
        if self.total_bytes:
            parts.append(f"{bytes_text(self.done_bytes)} of {bytes_text(self.total_bytes)}")
        if self.awaited:
            parts.append("waiting for " + "; ".join(self.awaited))
        return ", ".join(parts) or self.reason


def awaited_text(awaited: Awaited) -> str:
    """`worker 1 on node-1 (ranks 2, 3)`."""
    ranks = [str(rank) for rank in awaited.ranks]
    shown = ", ".join(ranks[:RANKS_SHOWN_MAX])
    if len(ranks) > RANKS_SHOWN_MAX:
        shown += f" and {len(ranks) - RANKS_SHOWN_MAX} more"
    name = f"worker {awaited.worker}" + (f" on {awaited.node}" if awaited.node else "")
    if not ranks:
        return name
    return f"{name} ({'rank' if len(ranks) == 1 else 'ranks'} {shown})"


class Board:
    """The rows so far. Knows no clock and no terminal."""

    def __init__(self) -> None:
        """Begin without any row."""
        self.action = ""
        self.rows: list[Row] = []

    def update(self, event: ActionEvent) -> Row:
        """Take in one event and return the row it belongs to."""
        self.action = event.action or self.action
        if not self.rows or self.rows[-1].state != event.state:
            if self.rows:
                self.rows[-1].ended_ms = event.elapsed_ms
            self.rows.append(Row(event.state, event.elapsed_ms))
        row = self.rows[-1]
        row.expected = event.expected
        row.done = max(0, event.expected - len(event.awaited) - event.unnamed)
        row.reason = event.reason
        row.done_bytes, row.total_bytes = event.done_bytes, event.total_bytes
        # a worker that owes two answers (RESUME and PERSIST) is named once
        names = list(dict.fromkeys(awaited_text(one) for one in event.awaited))
        row.awaited = names[:AWAITED_SHOWN_MAX]
        if event.unnamed:
            row.awaited.append(f"{len(names) - AWAITED_SHOWN_MAX + event.unnamed} more answers")
        elif len(names) > AWAITED_SHOWN_MAX:
            row.awaited.append(f"{len(names) - AWAITED_SHOWN_MAX} more workers")
        if event.state in FINAL_STATES:
            row.ended_ms = event.elapsed_ms
        return row


def plain_line(event: ActionEvent, row: Row) -> str:
    """One line for a log: `   1.2 s  DUMPING  1/2  waiting for worker 1 on node-1`."""
    took = duration_text(event.elapsed_ms / 1000)
    count = f"{row.done}/{row.expected}" if row.expected else ""
    detail = row.reason if row.state in FINAL_STATES else row.detail()
    return f"{took:>8}  {row.state:<13} {count:<7} {detail}".rstrip()
