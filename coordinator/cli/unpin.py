"""`allstop unpin SNAPSHOT`"""

from __future__ import annotations

import click

from coordinator.cli.options import asking
from coordinator.cli.output import Output
from coordinator.cli.verb import ASKING, verb


@verb(
    examples=("allstop unpin llm-20261129-214424-579caf",),
    exits=(*ASKING, 3, 4, 12),
)
@click.argument("snapshot", metavar="SNAPSHOT")
@asking
@click.pass_obj
def unpin(output: Output, snapshot: str) -> None:
    """Take the pin of SNAPSHOT away: the job's retention may let go of it from now on."""
    from rich.text import Text

    from coordinator.cli.asking import ask

    unpinned = ask(output, lambda client: client.unpin(snapshot))
    output.emit(unpinned, lambda: Text(f"{snapshot} is not pinned"))
