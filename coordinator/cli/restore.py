"""`allstop restore JOB`"""

from __future__ import annotations

import click

from coordinator.cli.options import asking, deadline_option, job_argument, snapshot_option
from coordinator.cli.output import Output


@click.command()
@job_argument
@snapshot_option
@deadline_option
@asking
@click.pass_obj
def restore(output: Output, job: str, snapshot: str, deadline_s: float) -> int:
    """Put a snapshot of JOB back, on other nodes where the old ones are gone.

    What still runs of the job is ended first. `allstop plan` shows beforehand what goes where.
    """
    from coordinator.cli.follow import follow

    return follow(
        output,
        lambda client: client.restore(job, snapshot, deadline_s=deadline_s),
        deadline_s=deadline_s,
    )
