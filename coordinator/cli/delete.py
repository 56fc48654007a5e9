"""`allstop delete JOB SNAPSHOT…`"""

from __future__ import annotations

import click

from coordinator.cli.options import asking, job_argument, option
from coordinator.cli.output import Output
from coordinator.cli.verb import ASKING, verb


@verb(
    examples=(
        "allstop delete llm llm-20261129-214424-579caf",
        "allstop delete llm llm-20261129-214424-579caf llm-20261129-224424-0b12aa -o json",
    ),
    exits=(*ASKING, 3, 4, 5, 12),
)
@job_argument
@click.argument("snapshots", metavar="SNAPSHOT...", nargs=-1, required=True)
@option("--force", is_flag=True, help="Also the newest one, where no other snapshot stays.")
@asking
@click.pass_obj
def delete(output: Output, job: str, snapshots: tuple[str, ...], force: bool) -> None:
    """Delete snapshots of JOB: they are restored no more from now on, and their bytes go.

    What other snapshots share with them stays. Refused for a pinned snapshot, for one that a
    restore or checkpoint uses just now, and for the newest while an older one stays. Where no node
    sees the image store it goes on by itself later; `allstop snapshots` shows that.
    """
    from coordinator.cli.cleaning import cleaned_view, follow_cleaning, told

    event = follow_cleaning(output, lambda client: client.delete(job, snapshots, force=force))
    output.emit(told(event), lambda: cleaned_view(job, event))
