"""`allstop verify SNAPSHOT`"""

from __future__ import annotations

import click

from coordinator.cli.options import asking, option
from coordinator.cli.output import Output
from coordinator.cli.verb import ASKING, verb


@verb(
    examples=(
        "allstop verify llm-20261129-214424-579caf",
        "allstop verify --all llm -o json",
    ),
    exits=(*ASKING, 3, 4, 12, 17),
)
@click.argument("snapshot", metavar="[SNAPSHOT]", required=False, default="")
@option("--all", "job", default="", metavar="JOB", help="Every snapshot of JOB, one after another.")
@asking
@click.pass_obj
def verify(output: Output, snapshot: str, job: str) -> int:
    """Have nodes read every byte of SNAPSHOT again, and name what is not what was committed.

    What is broken comes with the image file that needs it and with other snapshots that share it.
    The snapshot's record keeps what was found: a restore then takes an older one, unless this one
    is named. Ctrl-C stops it.
    """
    from rich.console import Group

    from coordinator.cli.asking import ask
    from coordinator.cli.verifying import outcome, verified_view, verify_one

    if bool(snapshot) == bool(job):
        raise click.UsageError("name a snapshot, or --all with a job")
    names = [snapshot]
    if job:
        known = ask(output, lambda client: client.snapshots(job))
        names = [each.snapshot for each in known.snapshots if not each.deleting]
    events = [verify_one(output, name) for name in names]
    output.emit(events, lambda: Group(*(verified_view(event) for event in events)))
    return outcome(events)
