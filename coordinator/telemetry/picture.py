"""A trace as one HTML page that needs nothing else: no script, no font, no request."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from html import escape

from coordinator.telemetry.spans import Span, Trace, straggles

_STYLE = """
:root { color-scheme: light dark; --ink: #1a2027; --paper: #fff; --line: #dde2e7; --dim: #57626d;
  --bar: #4a8fc2; --part: #a9c9e2; --late: #8a4b08; --bad: #a32626; --good: #1d6b42 }
@media (prefers-color-scheme: dark) { :root { --ink: #e4e8ec; --paper: #171c21; --line: #2b333b;
  --dim: #9ba6b1; --bar: #4d93c7; --part: #2f5472; --late: #f0b872; --bad: #f39a9a;
  --good: #7ed3a3 } }
body { font: 14px/1.5 Inter, system-ui, sans-serif; color: var(--ink); background: var(--paper);
  margin: 2rem auto; max-width: 72rem; padding: 0 1rem; overflow-wrap: anywhere }
h1 { font-size: 1.25rem; margin: 0 0 .25rem } p { margin: .25rem 0; color: var(--dim) }
.failed { color: var(--bad) } .good { color: var(--good) }
.rows { margin-top: 1rem; border-top: 1px solid var(--line) }
.row { display: grid; grid-template-columns: 14rem 1fr 5rem; gap: .75rem; align-items: center;
  border-bottom: 1px solid var(--line); min-height: 1.6rem }
.row.phase { font-weight: 600 } .row.part { color: var(--dim) }
.name { overflow: hidden; text-overflow: ellipsis; white-space: nowrap }
.track { position: relative; height: .9rem }
.took { text-align: right; font-variant-numeric: tabular-nums }
.bar { position: absolute; top: 0; bottom: 0; min-width: 2px; border-radius: 2px;
  background: var(--bar) }
.part .bar { background: var(--part) } .late .bar { background: var(--late) }
.bad .bar { background: var(--bad) }
table { border-collapse: collapse; margin-top: 1.5rem } td { padding: .15rem 1rem .15rem 0;
  vertical-align: top } td:first-child { color: var(--dim) }
@media (max-width: 40rem) { .row { grid-template-columns: 7.5rem 1fr 4.2rem; gap: .5rem } }
"""


def page_of(trace: Trace) -> str:
    """The whole page."""
    root = trace.root
    outcome = str(root.attributes["allstop.outcome"])
    when = datetime.fromtimestamp(trace.began_unix_s, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
    facts = "".join(
        f"<tr><td>{escape(name.removeprefix('allstop.'))}</td><td>{escape(str(value))}</td></tr>"
        for name, value in root.attributes.items()
        if value not in ("", 0)
    )
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        '<link rel="icon" href="data:,">'
        f"<title>{escape(trace.action)}</title><style>{_STYLE}</style></head><body>"
        f'<h1>{escape(root.name)} {escape(trace.action)} <span class="'
        f'{"failed" if root.failed else "good"}">{escape(outcome)}</span></h1>'
        f"<p>{escape(when)}, {_took(root.took_ms)} in all</p>"
        + (f'<p class="failed">{escape(root.failed)}</p>' if root.failed else "")
        + f'<div class="rows" role="list">{"".join(rows_of(trace))}</div>'
        f"<table>{facts}</table></body></html>\n"
    )


def rows_of(trace: Trace) -> Iterator[str]:
    """Every span as a row, children below their parents; the slowest worker of a phase first."""
    scale = max(trace.root.took_ms, 1.0)
    for phase in trace.children(trace.root):
        yield _row(phase, scale, 0, "phase", trace.root if phase.failed else None)
        workers = sorted(trace.children(phase), key=lambda each: -each.took_ms)
        for worker in workers:
            late = straggles(worker, workers)
            yield _row(worker, scale, 1, "bad" if worker.failed else "late" if late else "worker")
            for part in trace.children(worker):
                yield _row(part, scale, 2, "part")


def _row(span: Span, scale: float, depth: int, kind: str, failed: Span | None = None) -> str:
    node = span.attributes.get("allstop.node", "")
    name = f"{span.name} {node}".strip() if depth == 1 else span.name
    left, width = 100 * span.began_ms / scale, 100 * span.took_ms / scale
    bad = " bad" if failed is not None else ""
    title = escape(f"{name}: {_took(span.took_ms)}, after {_took(span.began_ms)}. {span.failed}")
    return (
        f'<div class="row {kind}{bad}" role="listitem" title="{title}">'
        f'<span class="name" style="padding-left:{depth}rem">{escape(name)}</span>'
        f'<span class="track"><span class="bar" style="left:{left:.3f}%;width:{width:.3f}%">'
        f'</span></span><span class="took">{_took(span.took_ms)}</span></div>'
    )


def _took(ms: float) -> str:
    return f"{ms:.0f} ms" if ms < 10_000 else f"{ms / 1000:.1f} s"
