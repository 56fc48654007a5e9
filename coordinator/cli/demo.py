"""`allstop demo`: the whole story on this machine, with nothing left behind."""

from __future__ import annotations

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
    from lab.demo.run import run_demo
    from lab.demo.telling import Telling

    people = Console(stderr=True, highlight=False, soft_wrap=True)
    telling = Telling(people, as_json=as_json)
    run_demo(DemoOptions(cut=Cut(cut), **options), people.print, telling)  # type: ignore[arg-type]
    if not telling.exact:
        raise SystemExit(1)
