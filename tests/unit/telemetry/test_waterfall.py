"""The same in the terminal and as a page."""

from __future__ import annotations

import io
import re
from dataclasses import replace
from html.parser import HTMLParser

from rich.console import Console

from coordinator.cli.waterfall import waterfall
from coordinator.core.model import Failure, Phase
from coordinator.core.timelines import WorkerTiming
from coordinator.telemetry.picture import page_of
from coordinator.telemetry.spans import Trace, straggles, trace_of
from tests.unit.telemetry.records import ABORTED, ACTION, COMMITTED, TIMELINE


def drawn(trace: Trace, **options: bool) -> str:
    out = io.StringIO()
    Console(file=out, width=100).print(waterfall(trace, **options))
    return out.getvalue()


def test_bars_stand_where_their_time_is() -> None:
    rows = drawn(trace_of(COMMITTED, TIMELINE)).splitlines()
    bars = {row.split()[0]: row for row in rows if re.search("[▏▎▍▌▋▊▉█]", row)}
    hold, persist, commit = (bars[name] for name in ("HOLD", "PERSIST", "COMMIT"))
    assert re.search(r"[▏▎▍▌▋▊▉█]", hold).start() < re.search(r"[▏▎▍▌▋▊▉█]", persist).start()  # type: ignore[union-attr]
    assert persist.count("█") > 30  # 8 of 9.9 seconds
    assert commit.rstrip().endswith("30 ms")
    assert re.search(r"[▏▎▍▌▋▊▉█]", commit).start() > 65  # type: ignore[union-attr]


def test_the_slowest_worker_is_first_and_what_it_did_is_below_it() -> None:
    rows = [row.split() for row in drawn(trace_of(COMMITTED, TIMELINE)).splitlines() if row.strip()]
    names = [" ".join(row[:2]) for row in rows]
    at = next(n for n, row in enumerate(rows) if row[0] == "DUMP")
    assert names[at + 1] == "worker 1"
    assert rows[at + 2][0] == "criu"


def test_of_many_workers_a_few_are_shown() -> None:
    many = tuple(WorkerTiming(Phase.PARK, n, f"n{n}", 10 + n) for n in range(100))
    trace = trace_of(COMMITTED, replace(TIMELINE, timings=many))
    text = drawn(trace)
    assert "worker 99" in text
    assert "worker 3 " not in text
    assert "94 more" in text
    assert "worker 3 " in drawn(trace, everything=True)


def test_a_straggler_is_one_alone_and_by_far() -> None:
    trace = trace_of(COMMITTED, TIMELINE)
    phases = {each.name: each for each in trace.children(trace.root)}
    late, usual = trace.children(phases["DUMP"])
    assert not straggles(usual, [late, usual])
    three = [late, usual, usual]
    assert straggles(late, three)


class Tags(HTMLParser):
    """Every tag must be closed, and nothing may be fetched."""

    VOID = frozenset({"meta", "link", "img", "input", "br", "hr"})

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.fetched: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag not in self.VOID:
            self.open.append(tag)
        self.fetched += [value or "" for name, value in attrs if name in ("src", "href")]
        assert tag != "script"

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def test_the_page_needs_nothing_else_and_says_it_all() -> None:
    page = page_of(trace_of(COMMITTED, TIMELINE))
    tags = Tags()
    tags.feed(page)
    assert tags.open == []
    assert tags.fetched == ["data:,"]  # an empty icon, or browsers ask for one
    assert "url(" not in page
    for word in (ACTION, "COMMITTED", "worker 1 n1", "rank 3", "criu", "1970-01-01 00:16:40 UTC"):
        assert word in page


def test_the_page_does_not_trust_what_it_is_told() -> None:
    evil = "<script>alert(1)</script>"
    record = replace(ABORTED, reason=evil, job=evil, failure=Failure("X", evil, phase="PARK"))
    page = page_of(trace_of(record, None))
    assert "<script" not in page
    assert "&lt;script&gt;" in page
