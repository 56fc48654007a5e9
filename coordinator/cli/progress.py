"""Progress of a checkpoint or restore: bars on a terminal, one line per change elsewhere."""

from __future__ import annotations

import time
from collections.abc import Callable
from types import TracebackType
from typing import TYPE_CHECKING, Protocol

from coordinator.api.board import FAILED_STATES, FINAL_STATES, Board, Row, plain_line
from coordinator.api.values import ActionEvent
from coordinator.api.words import duration_text

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

BAR_COLUMNS = 16
REFRESHES_PER_S = 8.0


class Progress(Protocol):
    """Shows events as they come; used as a context manager."""

    board: Board

    def __enter__(self) -> Progress:
        """Begin to show."""

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Leave what is shown standing."""

    def update(self, event: ActionEvent) -> None:
        """Show one more event."""


class Lines:
    """For logs and pipes: prints a line when the phase or the awaited change."""

    def __init__(self, console: Console) -> None:
        """Print to `console`."""
        self.board = Board()
        self.console = console
        self.last: object = None

    def __enter__(self) -> Lines:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        return None

    def update(self, event: ActionEvent) -> None:
        """Print a line unless nothing but time and bytes moved."""
        row = self.board.update(event)
        seen = (row.state, row.done, row.expected, tuple(row.awaited), row.reason)
        if seen != self.last:
            self.console.print(plain_line(event, row), soft_wrap=True)
        self.last = seen


class Bars:
    """For a terminal: one bar per phase; the times run on between events."""

    def __init__(self, console: Console, clock: Callable[[], float] = time.monotonic) -> None:
        """Draw on `console`; `clock` is monotonic, in seconds."""
        from rich.live import Live

        self.board = Board()
        self.clock = clock
        self.seen_s, self.elapsed_ms = clock(), 0
        self.live = Live(
            console=console, refresh_per_second=REFRESHES_PER_S, get_renderable=self.view
        )

    def __enter__(self) -> Bars:
        self.live.__enter__()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.live.__exit__(kind, error, trace)

    def update(self, event: ActionEvent) -> None:
        """Take the event in; the next refresh shows it."""
        self.board.update(event)
        self.seen_s, self.elapsed_ms = self.clock(), event.elapsed_ms

    def now_ms(self) -> int:
        """Time since the request: the last event's, and what has passed here since."""
        return self.elapsed_ms + round((self.clock() - self.seen_s) * 1000)

    def view(self) -> RenderableType:
        """The board as a grid."""
        from rich.table import Table

        grid = Table.grid(padding=(0, 1))
        for _ in range(5):
            grid.add_column(no_wrap=True)
        grid.add_column(overflow="fold")
        now_ms = self.now_ms()
        for row in self.board.rows:
            grid.add_row(*_cells(row, now_ms))
        return grid


def _cells(row: Row, now_ms: int) -> tuple[RenderableType, ...]:
    from rich.progress_bar import ProgressBar
    from rich.text import Text

    over = row.ended_ms is not None
    style = "red" if row.state in FAILED_STATES else "green" if over else "yellow"
    mark = "x" if row.state in FAILED_STATES else "+" if over else "."
    took_ms = (now_ms if row.ended_ms is None else row.ended_ms) - row.started_ms
    final = row.state in FINAL_STATES
    return (
        Text(mark, style=style),
        Text(row.state, style=style),
        Text("") if final else ProgressBar(1.0, row.share, width=BAR_COLUMNS),
        Text(f"{row.done}/{row.expected}" if row.expected else ""),
        Text("" if final else duration_text(took_ms / 1000), style="dim"),
        Text(row.reason if final else row.detail()),
    )


def progress(console: Console) -> Progress:
    """Bars where they can be drawn, lines elsewhere."""
    return Bars(console) if console.is_terminal else Lines(console)
