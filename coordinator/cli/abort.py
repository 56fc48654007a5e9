"""`allstop abort ID`"""

from __future__ import annotations

import click

from coordinator.cli.options import asking, option
from coordinator.cli.output import Output
from coordinator.cli.verb import ASKING, verb


@verb(
    examples=(
        "allstop abort llm-20261129-214424-579caf",
        "allstop abort llm-20261129-214424-579caf --reason 'the disks are wanted elsewhere'",
    ),
    exits=(*ASKING, 4),
)
@click.argument("action", metavar="ID")
@option("--reason", default="asked for by an operator", metavar="TEXT", help="Kept in its record.")
@asking
@click.pass_obj
def abort(output: Output, action: str, reason: str) -> None:
    """Give up the running checkpoint or restore ID.

    A checkpoint is undone and the job runs on. A restore is cleared away; its snapshot stays.
    """
    from rich.text import Text

    from coordinator.cli.asking import ask

    note = ask(output, lambda client: client.abort(action, reason))
    output.emit({"action": action, "note": note}, lambda: Text(note))
