"""`allstop logs JOB`"""

from __future__ import annotations

import asyncio
import json
import os
from contextlib import aclosing
from typing import TYPE_CHECKING, Any

import click

from coordinator.cli.options import asking, job_argument, option
from coordinator.cli.output import Output
from coordinator.cli.verb import ASKING, verb
from coordinator.core.errors import AllstopError, BadRequest
from coordinator.core.logs import OUTPUT

if TYPE_CHECKING:
    from coordinator.core.logs import LogPart

LINES = 100


@verb(
    examples=(
        "allstop logs llm",
        "allstop logs llm --worker 1 --lines 1000",
        "allstop logs llm --rank 3 --follow",
    ),
    exits=(*ASKING, 4),
)
@job_argument
@option("--worker", type=click.IntRange(min=0), metavar="N", help="Of this worker alone, from 0.")
@option("--rank", type=click.IntRange(min=0), metavar="N", help="Of this rank alone, from 0.")
@option("--follow", is_flag=True, help="Go on with what comes, until Ctrl-C.")
@option(
    "--lines",
    type=click.IntRange(0, 1_000_000),
    default=LINES,
    show_default=True,
    metavar="N",
    help="Begin so many lines before the end.",
)
@asking
@click.pass_obj
def logs(
    output: Output, job: str, worker: int | None, rank: int | None, follow: bool, lines: int
) -> int:
    """Show what the workers of JOB have put out, wherever they are.

    A line of one of several workers begins with its number. A rank has output of its own where
    torchrun was started with --tee 3 or --redirects 3.
    """
    if worker is not None and rank is not None:
        raise BadRequest("--worker and --rank exclude each other", advice="give one of them")
    shown = Shown(output, job, follow=follow, alone=worker is not None or rank is not None)
    try:
        asyncio.run(_read(shown, {"worker": worker, "rank": rank, "lines": lines}))
    except KeyboardInterrupt:
        if not follow:
            raise
    return shown.end()


async def _read(shown: Shown, what: dict[str, Any]) -> None:
    from coordinator.api.log_reader import LogReader
    from coordinator.cli.asking import client_of

    def waiting(error: AllstopError) -> None:
        shown.output.note(f"{error.what}; waiting", style="dim")

    async with client_of(shown.output) as client:
        reader = LogReader(client, shown.job, **what)
        async with aclosing(reader.follow(waiting) if shown.follow else reader.read()) as parts:
            async for part in parts:
                shown.take(part)


class Shown:
    """What has been read, as whole lines: at once, or of JSON without --follow at the end."""

    def __init__(self, output: Output, job: str, *, follow: bool, alone: bool) -> None:
        """`alone`: lines need not say whose they are."""
        self.output = output
        self.job = job
        self.follow = follow
        self._alone = alone
        self._color = False if os.environ.get("NO_COLOR") else None
        self._begun: dict[tuple[int, str], bytes] = {}  # lines without their end yet
        self._files: dict[tuple[int, str], str] = {}
        self._told: dict[int, str] = {}  # what was said last of a worker that cannot be read
        self._kept: dict[tuple[int, str], dict[str, Any]] = {}
        self._failed: dict[int, AllstopError] = {}

    def take(self, part: LogPart) -> None:
        """Show the whole lines of a piece, or why there is none."""
        key = part.worker, part.source
        if part.failure is not None:
            self._take_failure(part)
            return
        self._told.pop(part.worker, None)
        self._failed.pop(part.worker, None)
        if part.note:
            self.output.note(f"worker {part.worker} on {part.node}: {part.note}", style="dim")
        kept = self._kept.setdefault(
            key, {"worker": part.worker, "source": part.source, "node": part.node, "lines": []}
        )
        if self._files.setdefault(key, part.file) != part.file and key in self._begun:
            self._line(key, self._begun.pop(key))  # its end is in a file that is no more
        self._files[key], kept["node"] = part.file, part.node
        lines = (self._begun.pop(key, b"") + part.data).split(b"\n")
        if lines[-1]:
            self._begun[key] = lines[-1]
        for line in lines[:-1]:
            self._line(key, line)

    def _take_failure(self, part: LogPart) -> None:
        from coordinator.core.failures import error_of

        assert part.failure is not None
        error = self._failed[part.worker] = error_of(part.failure)
        if self.follow and self._told.get(part.worker) != error.what:
            self._told[part.worker] = error.what
            self.output.note(f"{error.what}; {error.advice}", style="yellow")

    def _line(self, key: tuple[int, str], line: bytes) -> None:
        text = line.decode(errors="replace")
        kept = self._kept[key]
        if self.output.json:
            if self.follow:
                told = {**{name: kept[name] for name in ("worker", "node", "source")}, "line": text}
                click.echo(json.dumps(told, ensure_ascii=False))
            else:
                kept["lines"].append(text)
            return
        worker, source = key
        whose = f"{worker} | " if source == OUTPUT else f"{worker} {source} | "
        click.echo(text if self._alone else f"{whose}{text}", color=self._color)

    def end(self) -> int:
        """Show the last lines, which have no end; raises the error of who could not be read."""
        for key, line in self._begun.items():
            self._line(key, line)
        self._begun.clear()
        if self.follow:
            return 0
        outputs = list(self._kept.values())
        errors = [self._failed[worker] for worker in sorted(self._failed)]
        if not errors:
            if self.output.json:
                self.output.emit({"job": self.job, "outputs": outputs}, lambda: "")
            return 0
        error = errors[0]
        error.details = (*error.details, *(str(each) for each in errors[1:]))
        self.output.error(error, job=self.job, outputs=outputs)
        return error.exit_code
