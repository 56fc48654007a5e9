"""`allstop demo`: the whole story on this machine, with nothing left behind."""

from __future__ import annotations

import json

import click
from rich.console import Console

from coordinator.cli.options import option
from coordinator.cli.verb import verb
from coordinator.core.model import Cut


@verb(
    examples=(
        "allstop demo",
        "allstop demo --kill node-0 --cut freeze --keep",
        "allstop demo --json > report.json",
    ),
    exits=(0, 1, 2, 14),
)
@option("--nodes", default=2, show_default=True, help="Busy nodes.")
@option("--ranks-per-node", default=2, show_default=True, help="That torchrun starts on each.")
@option("--spares", default=1, show_default=True, help="Nodes that wait for a worker.")
@option("--epochs", default=30, show_default=True, help="Of the training, 23 steps each.")
@option("--checkpoint-at", default=40, show_default=True, help="Step to checkpoint after.")
@option("--kill", default="", metavar="NODE", help="Node to lose.  [default: the last busy one]")
@option(
    "--cut", type=click.Choice([str(cut) for cut in Cut]), default="step", show_default=True,
    help="As of `allstop checkpoint`.",
)  # fmt: skip
@option("--keep", is_flag=True, help="Leave the cluster up to explore until Ctrl-C.")
@option("--json", "as_json", is_flag=True, help="End with one line of JSON on stdout.")
def demo(as_json: bool, cut: str, **options: object) -> None:
    """Train on two nodes, checkpoint, lose a node, restore on the spare, compare bit by bit.

    Needs root, CRIU and etcd (`make tools`) and PyTorch; `make demo` sees to all of it.
    """
    from lab.demo.options import DemoOptions
    from lab.demo.report import DemoReport, show
    from lab.demo.run import run_demo

    people = Console(stderr=True, highlight=False, soft_wrap=True)
    exact = []

    def tell(report: DemoReport) -> None:
        show(report, people)
        exact.append(report.bit_exact)
        if as_json:
            click.echo(json.dumps(report.to_fields()))

    run_demo(DemoOptions(cut=Cut(cut), **options), people.print, tell)  # type: ignore[arg-type]
    if exact != [True]:
        raise SystemExit(1)
