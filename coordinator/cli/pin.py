"""`allstop pin SNAPSHOT`"""

from __future__ import annotations

import click

from coordinator.cli.options import asking, option
from coordinator.cli.output import Output
from coordinator.cli.verb import ASKING, verb


@verb(
    examples=(
        "allstop pin llm-20261129-214424-579caf",
        "allstop pin llm-20261129-214424-579caf --why 'the one of the paper'",
    ),
    exits=(*ASKING, 3, 4, 12),
)
@click.argument("snapshot", metavar="SNAPSHOT")
@option("--why", default="", metavar="TEXT", help="Kept in its record.")
@asking
@click.pass_obj
def pin(output: Output, snapshot: str, why: str) -> None:
    """Keep SNAPSHOT whatever the job's retention says, until `allstop unpin`."""
    from rich.text import Text

    from coordinator.cli.asking import ask

    pinned = ask(output, lambda client: client.pin(snapshot, why))
    output.emit(pinned, lambda: Text(f"{snapshot} is pinned: {pinned.pinned}"))
