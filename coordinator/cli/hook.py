"""`allstop hook nvsentinel`"""

from __future__ import annotations

from pathlib import Path

import click

from coordinator.cli.durations import Duration
from coordinator.cli.options import asking, option
from coordinator.cli.output import Output
from coordinator.cli.verb import ASKING, verb_group


@verb_group(examples=("allstop hook nvsentinel --deadline 10m",), exits=(*ASKING, 14))
def hook() -> None:
    """Bridges from systems that tell of nodes by objects of their own, and post to nobody.

    Others post to `/hooks/drain` of a coordinator.
    """


@hook.command(
    examples=(
        "allstop hook nvsentinel --coordinator allstop:7411",
        "allstop hook nvsentinel --namespace nvsentinel --deadline 10m",
        "allstop hook nvsentinel --once --api http://127.0.0.1:8001",
    ),
    exits=(*ASKING, 14),
)
@option(
    "--namespace", default="nvsentinel", show_default=True, metavar="NAME",
    help="Where NVSentinel's node-drainer makes its DrainRequests.",
)  # fmt: skip
@option(
    "--deadline", type=Duration(), default=0.0, metavar="TIME",
    help="For the checkpoints of a drain to be whole; refused at once where that is not enough.",
)  # fmt: skip
@option("--every", type=Duration(0.1), default="5s", show_default=True, metavar="TIME",
        help="Between two looks.")  # fmt: skip
@option("--api", default="", metavar="URL", help="Of Kubernetes.  [default: that of this pod]")
@option(
    "--account", type=click.Path(file_okay=False, path_type=Path), metavar="DIR",
    help="With token and ca.crt.  [default: that of this pod]",
)  # fmt: skip
@option("--once", is_flag=True, help="Look once and end.")
@asking
@click.pass_obj
def nvsentinel(
    output: Output,
    namespace: str,
    deadline: float,
    every: float,
    api: str,
    account: Path | None,
    once: bool,
) -> None:
    """Drain the nodes that NVSentinel's DrainRequests name, and tell it when they are empty.

    Runs beside a coordinator in Kubernetes, as deploy/kubernetes/nvsentinel has it, until it is
    ended. Pods that a request names are evicted once the jobs of allstop are gone from there.
    """
    import asyncio

    from coordinator.bridges.kubernetes import ACCOUNT, Kubernetes
    from coordinator.bridges.nvsentinel import NvSentinel
    from coordinator.cli.asking import client_of

    kubernetes = Kubernetes(api, account or ACCOUNT)

    async def bridge() -> None:
        async with client_of(output) as client:
            looks = NvSentinel(kubernetes, client, namespace, deadline)
            await (looks.look() if once else looks.run(every))

    asyncio.run(bridge())
