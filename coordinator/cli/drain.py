"""`allstop drain NODE`"""

from __future__ import annotations

import click

from coordinator.cli.durations import Duration
from coordinator.cli.options import asking, option
from coordinator.cli.output import Output
from coordinator.cli.verb import ASKING, verb


@verb(
    examples=(
        "allstop drain node-2",
        "allstop drain node-2 --deadline 110s --why 'spot notice'",
        "allstop drain node-2 --detach",
    ),
    exits=(*ASKING, 3, 4, 6, 9, 12),
)
@click.argument("node", metavar="NODE")
@option(
    "--deadline", type=Duration(), default=0.0, metavar="TIME",
    help="For the checkpoints to be whole; refused at once where that is not enough.",
)  # fmt: skip
@option("--why", default="", metavar="TEXT", help="Kept in its record.")
@option("--detach", is_flag=True, help="Do not wait until the node is empty.")
@asking
@click.pass_obj
def drain(output: Output, node: str, deadline: float, why: str, detach: bool) -> None:
    """Empty NODE: stop its jobs with a checkpoint, and restore them on other nodes.

    No step is lost. Refused, with nothing stopped, where no other nodes can take the workers. A
    job that cannot be restored elsewhere after all is put back where it was. NODE takes no workers
    until `allstop undrain`; interrupting this command stops nothing.
    """
    from coordinator.cli.drains import followed, view

    record = followed(output, node, deadline_s=deadline, why=why, detach=detach)
    output.emit(record, lambda: view(record))
