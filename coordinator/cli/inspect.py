"""`allstop inspect SNAPSHOT`"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from coordinator.cli.images import choose, images_options, tidy, worker_option
from coordinator.cli.options import asking, option
from coordinator.cli.output import Output
from coordinator.cli.verb import ASKING, verb


@verb(
    examples=(
        "allstop inspect llm-20261129-214424-579caf",
        "allstop inspect llm-20261129-214424-579caf --worker 0 --areas",
        "allstop inspect llm-20261129-214424-579caf --store /shared/allstop -o json",
        "allstop inspect --images /mnt/copy/llm/llm-20261129-214424-579caf",
    ),
    exits=(*ASKING, 4, 10, 12, 14),
)
@click.argument("snapshot", required=False, default="", metavar="[SNAPSHOT]")
@worker_option
@option("--areas", is_flag=True, help="Every mapping of every process, as /proc/PID/maps has them.")
@images_options
@asking
@click.pass_obj
def inspect(
    output: Output,
    /,
    snapshot: str,
    worker: int | None,
    areas: bool,
    images: Path | None,
    deadline_s: float,
    **store: Any,
) -> None:
    """Show what a snapshot holds: processes, memory, sockets, open files and GPUs, rank by rank.

    The images are fetched into a folder below TMPDIR, verified, read, and removed again. Images
    alone (no SNAPSHOT) know nothing of ranks and GPUs.
    """
    from rich.console import Group

    from coordinator.cli.inside import worker_view

    chosen = choose(output, snapshot, store=store, images=images, deadline_s=deadline_s)
    views = []
    with tidy():
        for number in chosen.workers(worker):
            with chosen.source.worker(number) as held:
                views.append(held.view())
    output.emit(views, lambda: Group(*(worker_view(view, areas=areas) for view in views)))
