"""`allstop coordinator`"""

from __future__ import annotations

from typing import Any

import click

from coordinator.cli.options import option
from coordinator.cli.output import Output
from coordinator.cli.replica import replica_options, serve
from coordinator.cli.verb import verb


@verb(
    examples=(
        "allstop coordinator --etcd https://etcd-0:2379,https://etcd-1:2379 \\",
        "    --listen 10.0.0.1:7411 --tls-ca ca.pem --tls-cert c0.pem --tls-key c0.key",
        "allstop coordinator --config /etc/allstop/coordinator.toml",
    ),
    exits=(0, 2, 12, 14),
)
@replica_options
@option("--etcd", multiple=True, required=True, metavar="URL", help="May be repeated.")
@click.pass_obj
def coordinator(output: Output, /, etcd: tuple[str, ...], **replica: Any) -> int:
    """Run one coordinator replica over an existing etcd.

    One of them leads, and another takes over when it is gone. Each carries shims and answers
    operators, whoever leads.
    """
    return serve(output, etcd=etcd, replica=replica)
