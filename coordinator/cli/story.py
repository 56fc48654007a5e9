"""`allstop story JOB`"""

from __future__ import annotations

import click

from coordinator.cli.options import asking, job_argument
from coordinator.cli.output import Output, plain
from coordinator.cli.verb import ASKING, verb


@verb(
    examples=(
        "allstop story llm",
        "allstop story llm -o json",
    ),
    exits=(*ASKING, 4),
)
@job_argument
@asking
@click.pass_obj
def story(output: Output, job: str) -> None:
    """Tell what was done for JOB by itself, and why: checkpoints, failures, restores."""
    from coordinator.cli.asking import ask
    from coordinator.cli.policies import story_view

    told = ask(output, lambda client: client.story(job))
    output.emit(plain(told), lambda: story_view(told))
