"""`allstop export SNAPSHOT --to DIR`"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from coordinator.cli.images import choose, images_options, tidy, worker_option
from coordinator.cli.options import asking, directory
from coordinator.cli.output import Output
from coordinator.cli.verb import ASKING, verb
from coordinator.core.errors import SetupError


@verb(
    examples=(
        "allstop export llm-20261129-214424-579caf --to /mnt/export",
        "allstop export llm-20261129-214424-579caf --to /mnt/export --worker 0",
    ),
    exits=(*ASKING, 4, 10, 12, 14),
)
@click.argument("snapshot", required=False, default="", metavar="[SNAPSHOT]")
@directory("--to", required=True, help="Where the tars go; it is made when it is missing.")
@worker_option
@images_options
@asking
@click.pass_obj
def export(
    output: Output,
    /,
    snapshot: str,
    to: Path,
    worker: int | None,
    images: Path | None,
    deadline_s: float,
    **store: Any,
) -> None:
    """Write each worker as a tar that `checkpointctl` and tools of podman read.

    They show its processes, memory, sockets and files, and as annotations what allstop knows of
    it. No engine can start it: a worker is no container. The tars hold the memory of processes,
    secrets included, and are readable by their owner alone.
    """
    from importlib.metadata import version

    from coordinator.cli.inside import exported_view
    from worker_shim.reading.archive import write_archive

    chosen = choose(output, snapshot, store=store, images=images, deadline_s=deadline_s)
    try:
        to.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise SetupError(f"cannot make {to}: {error.strerror}") from None
    written = []
    with tidy():
        for number in chosen.workers(worker):
            with chosen.source.worker(number) as held:
                view = held.view()
                path = write_archive(held, view, chosen.snapshot, to, version=version("allstop"))
            written.append({"worker": number, "path": str(path), "bytes": path.stat().st_size})
    output.emit(written, lambda: exported_view(written))
