"""A trace as a waterfall for the terminal: one bar a row, what others waited for in colour."""

from __future__ import annotations

from collections.abc import Iterator
from statistics import median

from rich.console import Group, RenderableType
from rich.text import Text

from coordinator.api.words import duration_text
from coordinator.telemetry.spans import Span, Trace, straggles

BAR_COLUMNS = 44
NAME_COLUMNS = 26
WORKERS_SHOWN = 6  # of one phase, the slowest
EIGHTHS = " ▏▎▍▌▋▊▉█"


def waterfall(trace: Trace, *, everything: bool = False, left_out: int = 0) -> RenderableType:
    """All phases; of each the slowest workers, and what the slowest of all did."""
    root = trace.root
    lines: list[RenderableType] = [_head(trace)]
    scale = max(root.took_ms, 1.0)
    for phase in trace.children(root):
        lines.append(_row(phase, scale, 0, "bold red" if phase.failed else "bold"))
        lines.extend(_workers(trace, phase, scale, everything))
    if left_out:
        lines.append(Text(f"{left_out} quicker answers were not kept", style="dim"))
    lines.extend(
        Text(f"{duration_text(moment.at_ms / 1000):>9}  {moment.name}", style="dim")
        for moment in root.moments
    )
    return Group(*lines)


def _head(trace: Trace) -> Text:
    root, of = trace.root, trace.root.attributes
    style = "bold red" if root.failed else "bold green"
    text = Text.assemble(
        (f"{root.name} {trace.action}  ", "bold"),
        (str(of["allstop.outcome"]), style),
        f"  {duration_text(root.took_ms / 1000)}",
    )
    if root.failed:
        text.append(f"\n{of['allstop.reason']}", style="red")
    return text


def _workers(trace: Trace, phase: Span, scale: float, everything: bool) -> Iterator[Text]:
    workers = sorted(trace.children(phase), key=lambda each: -each.took_ms)
    shown = workers if everything else workers[:WORKERS_SHOWN]
    for place, worker in enumerate(shown):
        late = straggles(worker, workers)
        style = "red" if worker.failed else "yellow" if late else ""
        yield _row(worker, scale, 1, style, str(worker.attributes.get("allstop.node", "")))
        if everything or place == 0:
            below = trace.children(worker)
            for part in below if everything else [p for p in below if p.took_ms * 20 >= scale]:
                yield _row(part, scale, 2, "dim")
    if len(workers) > len(shown):
        rest = workers[len(shown) :]
        usual = duration_text(median(each.took_ms for each in rest) / 1000)
        yield Text(f"    … {len(rest)} more, {usual} in the middle", style="dim")


def _row(span: Span, scale: float, depth: int, style: str, note: str = "") -> Text:
    name = f"{'  ' * depth}{span.name}{f' {note}' if note else ''}"
    bar = _bar(span.began_ms / scale, span.took_ms / scale)
    took = duration_text(span.took_ms / 1000)
    return Text(f"{name[:NAME_COLUMNS]:<{NAME_COLUMNS}} {bar} {took:>8}", style=style)


def _bar(began: float, took: float) -> str:
    """A bar in eighths of a column; at least one of them, so that everything is seen."""
    first = min(int(began * BAR_COLUMNS), BAR_COLUMNS - 1)
    eighths = max(1, round(took * BAR_COLUMNS * 8))
    whole, rest = divmod(eighths, 8)
    bar = " " * first + EIGHTHS[-1] * whole + (EIGHTHS[rest] if rest else "")
    return f"{bar[:BAR_COLUMNS]:<{BAR_COLUMNS}}"
