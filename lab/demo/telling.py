"""What a command that plays the demo tells at the end, and what it then ends with."""

from __future__ import annotations

import json

import click
from rich.console import Console

from lab.demo.report import DemoReport, show


class Telling:
    """Tells a report to people, and to programs where they asked."""

    def __init__(self, people: Console, *, as_json: bool) -> None:
        """With `as_json` one line of JSON on stdout comes last."""
        self._people = people
        self._as_json = as_json
        self.exact = False  # whether a report was told, of a job that ended as an undisturbed one

    def __call__(self, report: DemoReport) -> None:
        """Called once, by whoever has played the demo."""
        show(report, self._people)
        self.exact = report.bit_exact
        if self._as_json:
            click.echo(json.dumps(report.to_fields()))
