"""`allstop jobs`"""

from __future__ import annotations

import click

from coordinator.cli.options import asking
from coordinator.cli.output import Output
from coordinator.cli.verb import verb


@verb(
    examples=(
        "allstop jobs",
        "allstop jobs -o json",
    ),
)
@asking
@click.pass_obj
def jobs(output: Output) -> None:
    """List all jobs: state, workers, ranks, step, newest snapshot and its age."""
    from coordinator.cli.asking import ask
    from coordinator.cli.tables import jobs_view

    views = ask(output, lambda client: client.jobs())
    output.emit(views, lambda: jobs_view(views))
