"""`allstop nodes`"""

from __future__ import annotations

import click

from coordinator.cli.options import asking
from coordinator.cli.output import Output
from coordinator.cli.verb import verb


@verb(
    examples=(
        "allstop nodes",
        "allstop nodes --coordinator 10.0.0.1:7411 --insecure -o json",
    ),
)
@asking
@click.pass_obj
def nodes(output: Output) -> None:
    """List all nodes: address, state, workers, CRIU, free memory and staging space."""
    from coordinator.cli.asking import ask
    from coordinator.cli.tables import nodes_view

    views = ask(output, lambda client: client.nodes())
    output.emit(views, lambda: nodes_view(views))
