"""`allstop watch ID`"""

from __future__ import annotations

import click

from coordinator.cli.options import asking
from coordinator.cli.output import Output
from coordinator.cli.verb import ASKING, verb


@verb(
    examples=("allstop watch llm-20261129-214424-579caf",),
    exits=(*ASKING, 4, 7, 8, 9, 12, 130),
)
@click.argument("action", metavar="ID")
@asking
@click.pass_obj
def watch(output: Output, action: str) -> int:
    """Follow the checkpoint or restore ID to its end; of a finished one, show the end.

    Exit code and output are those of the command that began it.
    """
    from coordinator.cli.follow import follow

    return follow(output, lambda client: client.watch(action))
