"""`allstop snapshots JOB`"""

from __future__ import annotations

import click

from coordinator.cli.options import asking, job_argument
from coordinator.cli.output import Output, plain
from coordinator.cli.verb import ASKING, verb


@verb(
    examples=(
        "allstop snapshots llm",
        "allstop snapshots llm -o json",
    ),
    exits=(*ASKING, 4, 12),
)
@job_argument
@asking
@click.pass_obj
def snapshots(output: Output, job: str) -> None:
    """List the snapshots of JOB, the newest first: step, ranks, size, age."""
    from coordinator.cli.asking import ask
    from coordinator.cli.tables import snapshots_view

    reply = ask(output, lambda client: client.snapshots(job))
    for problem in reply.problems:
        output.note(problem, "red")
    newest_first = sorted(reply.snapshots, key=lambda one: one.committed_unix_s, reverse=True)
    output.emit(
        {
            "latest": reply.latest,
            "snapshots": plain(newest_first),
            "problems": list(reply.problems),
        },
        lambda: snapshots_view(newest_first, reply.latest),
    )
