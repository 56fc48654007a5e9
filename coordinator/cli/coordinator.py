"""`allstop coordinator`"""

from __future__ import annotations

from typing import Any

import click

from coordinator.cli.options import option
from coordinator.cli.output import Output
from coordinator.cli.replica import replica_options, serve


@click.command()
@replica_options
@option("--etcd", multiple=True, required=True, metavar="URL", help="May be repeated.")
@click.pass_obj
def coordinator(output: Output, /, etcd: tuple[str, ...], **replica: Any) -> int:
    """Run one coordinator replica over an existing etcd.

    One of them leads, and another takes over when it is gone. Each carries shims and answers
    operators, whoever leads.
    """
    return serve(output, etcd=etcd, replica=replica)
