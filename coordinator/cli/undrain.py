"""`allstop undrain NODE`"""

from __future__ import annotations

import click

from coordinator.cli.options import asking
from coordinator.cli.output import Output
from coordinator.cli.verb import ASKING, verb


@verb(examples=("allstop undrain node-2",), exits=(*ASKING, 4, 12))
@click.argument("node", metavar="NODE")
@asking
@click.pass_obj
def undrain(output: Output, node: str) -> None:
    """Let NODE take workers again; what its drain has stopped so far is put back first."""
    from coordinator.cli.asking import ask
    from coordinator.cli.drains import view

    record = ask(output, lambda client: client.undrain(node))
    output.emit(record, lambda: view(record))
