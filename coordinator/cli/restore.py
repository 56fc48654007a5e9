"""`allstop restore JOB`"""

from __future__ import annotations

import click

from coordinator.cli.options import (
    asking,
    deadline_option,
    job_argument,
    mismatch_options,
    option,
    snapshot_option,
)
from coordinator.cli.output import Output
from coordinator.cli.verb import ASKING, verb


@verb(
    examples=(
        "allstop restore llm",
        "allstop restore llm --snapshot llm-20261129-214424-579caf --deadline 10m",
        "allstop restore llm --on-mismatch cold-start --old-addresses move",
    ),
    exits=(*ASKING, 4, 5, 6, 9, 12, 130),
)
@job_argument
@snapshot_option
@deadline_option
@option(
    "--old-run-ended",
    is_flag=True,
    help="No process of the job lives on a node out of reach: you have made sure.",
)
@mismatch_options
@asking
@click.pass_obj
def restore(
    output: Output,
    job: str,
    snapshot: str,
    deadline_s: float,
    old_run_ended: bool,
    on_mismatch: str,
    old_addresses: str,
) -> int:
    """Put a snapshot of JOB back, on other nodes where the old ones are gone.

    What still runs of the job is ended first. `allstop plan` shows beforehand what goes where.

    Refused where no worker of the job is in reach and none is known to have ended (all its nodes
    cut off, or a new coordinator that has never seen it): the job may be training on there, and a
    second one beside it would write to the same files. Make sure that it is not, then say
    --old-run-ended.

    With --on-mismatch cold-start, and only where no nodes fit the snapshot, every worker's command
    is started anew as it was first started, on nodes that can run it; the restore's record says so.
    Files that the job has written stay as they are.
    """
    from coordinator.cli.follow import follow
    from coordinator.core.model import OldAddresses

    return follow(
        output,
        lambda client: client.restore(
            job,
            snapshot,
            deadline_s=deadline_s,
            old_run_ended=old_run_ended,
            cold_start=on_mismatch == "cold-start",
            old_addresses=OldAddresses(old_addresses),
        ),
        deadline_s=deadline_s,
    )
