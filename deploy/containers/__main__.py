"""`make compose-demo`: the demo's story in the containers of `deploy/compose`."""

from __future__ import annotations

import sys

import click
from rich.console import Console

from coordinator.cli.exits import INTERRUPTED
from coordinator.cli.output import Output
from coordinator.core.errors import AllstopError
from coordinator.core.model import Cut
from deploy.containers.demo import play_in_containers
from lab.demo.options import DemoOptions
from lab.demo.telling import Telling


@click.command()
@click.option("--ranks-per-node", default=2, show_default=True)
@click.option("--epochs", default=30, show_default=True, help="Of the training, 23 steps each.")
@click.option("--loader-workers", default=1, show_default=True, help="Of each rank.")
@click.option("--checkpoint-at", default=40, show_default=True, help="Step to checkpoint after.")
@click.option("--kill", default="", metavar="NODE", help="Node to lose.  [default: node-1]")
@click.option("--cut", type=click.Choice([str(cut) for cut in Cut]), default="step")
@click.option("--keep", is_flag=True, help="Leave the cluster up to explore until Ctrl-C.")
@click.option("--json", "as_json", is_flag=True, help="End with one line of JSON on stdout.")
def compose_demo(as_json: bool, cut: str, **options: object) -> int:
    """Train in containers, checkpoint, kill one, restore in the spare one, compare bit by bit.

    An engine that runs is used; where there is none, one is fetched and started for the time, which
    needs root.
    """
    people = Console(stderr=True, highlight=False, soft_wrap=True)
    telling = Telling(people, as_json=as_json)
    play_in_containers(
        DemoOptions(cut=Cut(cut), **options),  # type: ignore[arg-type]
        people.print,
        telling,
    )
    return 0 if telling.exact else 1


def main() -> int:
    """Run it and return the exit code, as `allstop demo` would end."""
    try:
        ended: int = compose_demo.main(standalone_mode=False, prog_name="make compose-demo")
    except AllstopError as error:
        Output([]).error(error)
        return error.exit_code
    except click.ClickException as error:
        error.show()
        return error.exit_code
    except (KeyboardInterrupt, click.Abort):
        return INTERRUPTED
    return ended


if __name__ == "__main__":
    sys.exit(main())
