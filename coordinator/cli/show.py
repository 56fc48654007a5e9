"""`allstop show ID`"""

from __future__ import annotations

import click

from coordinator.cli.options import asking
from coordinator.cli.output import Output
from coordinator.cli.verb import ASKING, verb


@verb(
    examples=(
        "allstop show llm-20261129-214424-579caf",
        "allstop show llm-20261129-214424-579caf -o json",
    ),
    exits=(*ASKING, 4, 12),
)
@click.argument("record", metavar="ID")
@asking
@click.pass_obj
def show(output: Output, record: str) -> None:
    """Show all that is known of one snapshot, checkpoint attempt or restore.

    Workers, ranks and their steps, why it is in its state, and how long each phase took.
    """
    from coordinator.cli.asking import ask
    from coordinator.cli.records import whole_view

    shown = ask(output, lambda client: client.show(record))
    output.emit(shown, lambda: whole_view(shown.snapshot, shown.attempt, shown.restore))
