"""Where the time of a run went, as a picture in SVG: a bar a contender, its median run."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

PARTS = (
    ("training", "#3b7dd8"),
    ("stopped for checkpoints", "#e3a12f"),
    ("standing after a kill", "#cf4b45"),
    ("steps done again", "#8c6bb1"),
)
WIDTH, LEFT, RIGHT, BAR, ROW, TOP = 860, 270, 60, 20, 34, 52
STYLE = (
    "text{font:13px system-ui,sans-serif;fill:#1f2328}.small{font-size:11px;fill:#59636e}"
    "line{stroke:#d1d9e0}@media(prefers-color-scheme:dark){text{fill:#f0f6fc}"
    ".small{fill:#9198a1}line{stroke:#3d444d}}"
)


def parts_of(run: Mapping[str, Any]) -> tuple[float, ...]:
    """Seconds of a run in the order of `PARTS`; together they are its total."""
    kills = run["recoveries"]
    standing = sum(kill["resumed_s"] for kill in kills if kill["resumed_s"] > 0)
    again = sum(kill["new_s"] - kill["resumed_s"] for kill in kills if kill["new_s"] > 0)
    rest = run["wall_s"] - run["stopped_s"] - standing - again
    return max(0.0, rest), run["stopped_s"], standing, again


def svg(found: Mapping[str, Any]) -> str:
    """The picture."""
    bars = [
        (told["title"], median_parts(found["runs"], told["name"])) for told in found["contenders"]
    ]
    drawn = [(title, parts) for title, parts in bars if parts]
    most = max((sum(parts) for _, parts in drawn), default=1.0)
    scale = (WIDTH - LEFT - RIGHT) / most
    height = TOP + ROW * len(drawn) + 30
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}">',
        f"<style>{STYLE}</style>",
        *legend(),
        *axis(most, scale, height),
    ]
    for index, (title, parts) in enumerate(drawn):
        lines += bar(title, parts, TOP + ROW * index, scale)
    return "\n".join([*lines, "</svg>\n"])


def median_parts(runs: Sequence[Mapping[str, Any]], name: str) -> tuple[float, ...]:
    """The parts of the run whose total is the median (the lower of two); empty without any."""
    done = [run for run in runs if run["contender"] == name and run["finished"]]
    if not done:
        return ()
    middle = statistics.median_low([run["wall_s"] for run in done])
    return parts_of(next(run for run in done if run["wall_s"] == middle))


def legend() -> list[str]:
    lines, x = [], float(LEFT)
    for name, colour in PARTS:
        lines.append(f'<rect x="{x:.0f}" y="14" width="12" height="12" rx="2" fill="{colour}"/>')
        lines.append(f'<text x="{x + 17:.0f}" y="24" class="small">{name}</text>')
        x += 34 + 6.1 * len(name)
    return lines


def axis(most: float, scale: float, height: int) -> list[str]:
    """Lines at whole steps of seconds."""
    every = next((step for step in (10, 20, 30, 60, 120) if most / step <= 8), 300)
    lines = []
    middle = 'text-anchor="middle" class="small"'
    for second in range(0, int(most) + 1, every):
        x = LEFT + second * scale
        lines.append(f'<line x1="{x:.1f}" y1="{TOP - 12}" x2="{x:.1f}" y2="{height - 24}"/>')
        lines.append(f'<text x="{x:.1f}" y="{height - 8}" {middle}>{second} s</text>')
    return lines


def bar(title: str, parts: Sequence[float], y: int, scale: float) -> list[str]:
    lines = [f'<text x="{LEFT - 10}" y="{y + 15}" text-anchor="end">{escape(title)}</text>']
    x = float(LEFT)
    for (_, colour), value in zip(PARTS, parts, strict=True):
        if value > 0:
            width = value * scale
            lines.append(
                f'<rect x="{x:.1f}" y="{y}" width="{width:.1f}" height="{BAR}" fill="{colour}"/>'
            )
            x += width
    lines.append(f'<text x="{x + 6:.1f}" y="{y + 15}" class="small">{sum(parts):.0f} s</text>')
    return lines
