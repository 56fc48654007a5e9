"""`allstop gc [JOB]`"""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from coordinator.cli.options import asking, option
from coordinator.cli.output import Output
from coordinator.cli.verb import ASKING, verb

if TYPE_CHECKING:
    from coordinator.api.values import ActionEvent


@verb(
    examples=(
        "allstop gc --dry-run",
        "allstop gc llm",
    ),
    exits=(*ASKING, 4, 5, 10, 12),
)
@click.argument("job", required=False, default="")
@option("--dry-run", is_flag=True, help="Only say what would go: objects and bytes.")
@option(
    "--unknown",
    is_flag=True,
    help="Also attempts that this control plane has no record of: no other one may use the store.",
)
@asking
@click.pass_obj
def gc(output: Output, job: str, dry_run: bool, unknown: bool) -> None:
    """Remove what checkpoints that are over and no snapshots have left in the image stores.

    Of JOB, or of all jobs. What a snapshot needs stays, and so does what a checkpoint that runs
    has written. Each deletion does the same for its job.
    """
    from functools import partial

    from rich.console import Group

    from coordinator.api.client import OperatorClient
    from coordinator.cli.asking import ask
    from coordinator.cli.cleaning import cleaned_view, follow_cleaning, told

    jobs = [job] if job else [view.job.job for view in ask(output, lambda c: c.jobs())]

    def collect(name: str) -> ActionEvent:
        begin = partial(OperatorClient.collect, job=name, dry_run=dry_run, unknown=unknown)
        return follow_cleaning(output, begin)

    events = [(each, collect(each)) for each in jobs]
    output.emit(
        {each: told(event) for each, event in events},
        lambda: Group(*(cleaned_view(each, event) for each, event in events)),
    )
