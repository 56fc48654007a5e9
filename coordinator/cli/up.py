"""`allstop up`"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from coordinator.cli.options import option
from coordinator.cli.output import Output
from coordinator.cli.replica import replica_options, serve
from coordinator.cli.verb import verb


@verb(
    examples=(
        "allstop up",
        "allstop up --insecure --listen 10.0.0.1:7411 --policy dump_s=90s",
        "allstop up --state-dir /srv/allstop --http 127.0.0.1:8080",
    ),
    exits=(0, 2, 12, 14),
)
@replica_options
@option(
    "--etcd",
    multiple=True,
    metavar="URL",
    help="Use this cluster, may be repeated.  [default: an etcd of its own]",
)
@option(
    "--etcd-program",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="The etcd to start.  [default: that of `make tools`, then the one in PATH]",
)
@click.pass_obj
def up(output: Output, /, etcd: tuple[str, ...], **replica: Any) -> int:
    """Run the control plane of one machine: a coordinator, and an etcd that lives as long.

    Data is kept in the state directory, and so is the socket that `allstop` on this machine asks
    first. Ctrl-C ends it in an orderly way; jobs run on.
    """
    return serve(output, etcd=etcd, replica=replica)
