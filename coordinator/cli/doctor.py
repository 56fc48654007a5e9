"""`allstop doctor`"""

from __future__ import annotations

import asyncio
import socket
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from coordinator.cli import options
from coordinator.cli.config_file import rank
from coordinator.cli.options import asking, directory, option
from coordinator.cli.output import Output
from coordinator.cli.stores import STORE_DIRECTORY, store_options, where_of
from coordinator.cli.verb import verb
from coordinator.core.errors import AllstopError, SetupError

if TYPE_CHECKING:
    from rich.table import Table

    from worker_shim.compatibility.page import Told
    from worker_shim.examination import Line

STYLES = {
    "ok": "green", "warning": "yellow", "fix": "bold red", "warn": "yellow", "refuse": "bold red",
}  # fmt: skip


@verb(
    examples=(
        "allstop doctor",
        "allstop doctor --coordinator 10.0.0.1:7411 --insecure --store /shared/allstop",
        "allstop doctor --store s3://bucket/llm --store-key file:/etc/allstop/store.key",
        "allstop doctor --matrix",
    ),
    exits=(0, 2, 14),
)
@store_options
@option("--node", metavar="NAME", help="As the shim's.  [default: the host name]")
@directory("--staging", help="As the shim's.")
@option(
    "--criu", type=click.Path(dir_okay=False, path_type=Path), metavar="FILE",
    help="As the shim's.",
)  # fmt: skip
@options.gpu_engine(help="As the shim's.")
@option(
    "--matrix", is_flag=True,
    help="Instead: all that is known of drivers, NCCL and features of GPU jobs, and what of it "
    "applies here.",
)  # fmt: skip
@asking
@click.pass_context
def doctor(
    ctx: click.Context,
    /,
    staging: Path | None,
    criu: Path | None,
    gpu_engine: str,
    matrix: bool,
    node: str | None,
    **store: Any,
) -> None:
    """Look at this machine and say what a shim would miss on it, line by line.

    Kernel, CRIU, capabilities, network lock, space, clock, drivers, and whether a coordinator
    answers. A store that is named (--store) is tried end to end: written once, read, listed,
    deleted, with its key. Exit code 14 when something has to be fixed.
    """
    output = ctx.ensure_object(Output)
    if matrix:
        _matrix(output, gpu_engine)
        return
    from worker_shim.agent.options import RUN_DIRECTORY, STAGING_DIRECTORY
    from worker_shim.examination import Places, Verdict, examine

    asked = rank(ctx, "store") > 0
    where = None if asked else STORE_DIRECTORY
    places = Places(where, staging or STAGING_DIRECTORY, RUN_DIRECTORY, criu, gpu_engine)
    lines = asyncio.run(examine(places))
    if asked:
        lines += _tried(output, node or socket.gethostname(), store)
    lines.append(_coordinator(output))
    output.emit({"lines": [asdict(line) for line in lines]}, lambda: table_of(lines))
    wrong = [line for line in lines if line.verdict is Verdict.FIX]
    if wrong:
        raise SetupError(
            f"{len(wrong)} of {len(lines)} things have to be fixed: "
            + ", ".join(line.what for line in wrong),
            advice="the lines above say how",
        )


def _tried(output: Output, node: str, given: dict[str, Any]) -> list[Line]:
    """The store that was named, used as a shim would; of partners only their side is open."""
    from worker_shim.images.examining import examine_store

    return examine_store(replace(where_of(output, node, given), serve=False))


def _matrix(output: Output, gpu_engine: str) -> None:
    """Every row of the compatibility table; of this node, where it has a driver."""
    from worker_shim.compatibility.page import told
    from worker_shim.examination import sight_of_node

    sight = asyncio.run(sight_of_node(gpu_engine))
    rows = list(told(sight.node.situation if sight.any else None))
    output.emit({"rows": [asdict(row) for row in rows]}, lambda: matrix_of(rows))


def matrix_of(told: list[Told]) -> Table:
    """One row a row of the table."""
    from rich.text import Text

    from coordinator.cli.tables import table

    rows = table("HERE", "DRIVER", "ABOUT", "", "WHAT IS KNOWN", "WHAT TO DO", "KNOWN FROM")
    for row in told:
        driver = Text(row.driver or "any")
        if row.when:
            driver.append(f"; {row.when}", style="dim")
        verdict = Text(row.verdict, style=STYLES[row.verdict])
        here = Text(row.here or "-", style="bold" if row.here == "yes" else "dim")
        rows.add_row(here, driver, row.about, verdict, row.words, row.advice, row.source)
    return rows


def _coordinator(output: Output) -> Line:
    """Whether one answers, and leads or knows who does."""
    from coordinator.api.client import OperatorClient
    from worker_shim.examination import Line, Verdict

    async def ask() -> int:
        async with OperatorClient(output.safe_addresses, tls=output.tls) as client:
            return len(await client.nodes())

    try:
        nodes = asyncio.run(ask())
    except AllstopError as error:
        return Line("coordinator", Verdict.WARNING, error.what, error.advice)
    return Line("coordinator", Verdict.OK, f"one answers; it knows {nodes} nodes")


def table_of(lines: list[Line]) -> Table:
    """One row a line."""
    from rich.text import Text

    from coordinator.cli.tables import table

    rows = table("", "WHAT", "FOUND", "WHAT TO DO")
    for line in lines:
        verdict = Text(line.verdict, style=STYLES[line.verdict])
        rows.add_row(verdict, line.what, line.found, line.advice)
    return rows
