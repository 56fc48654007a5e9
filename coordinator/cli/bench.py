"""`allstop bench`: what it costs, measured on this machine; the measurements are in a checkout."""

from __future__ import annotations

import asyncio
import importlib
import importlib.util
import json
from typing import Any

import click

from coordinator.cli.options import option, output_option
from coordinator.cli.output import Output
from coordinator.cli.verb import verb_group
from coordinator.core.errors import SetupError


def _measurement(name: str) -> Any:
    """A module of `bench`, which is not installed with the command; raises SetupError."""
    if importlib.util.find_spec("bench") is None:
        raise SetupError(
            "the measurements are not installed",
            advice="run it in a checkout of the source: `make bench` there does all of them",
        )
    return importlib.import_module(f"bench.{name}")


@verb_group(examples=("allstop bench coordination --shims 64",), exits=(0, 2, 14))
def bench() -> None:
    """Measure what allstop costs on this machine, beside the floor it is measured against."""


@bench.command(
    examples=(
        "allstop bench coordination --shims 8 --shims 256",
        "allstop bench coordination --shims 1024 --fronts 2 --no-tls -o json",
    ),
    exits=(0, 2, 14),
)
@option(
    "--shims", multiple=True, type=click.IntRange(1), metavar="N",
    help="How many; may be repeated.  [default: 8, 64, 256, 1024, 4096]",
)  # fmt: skip
@option(
    "--fronts", multiple=True, type=click.IntRange(0), default=(0,), show_default=True, metavar="N",
    help="Carrier processes beside the leader; may be repeated.",
)  # fmt: skip
@option("--tls/--no-tls", default=True, show_default=True, help="With certificates on both sides.")
@option(
    "--count", type=click.IntRange(0), default=0, metavar="N",
    help="Checkpoints of each size.  [default: as many as suit it]",
)  # fmt: skip
@output_option
@click.pass_obj
def coordination(
    output: Output, /, shims: tuple[int, ...], fronts: tuple[int, ...], tls: bool, count: int
) -> None:
    """Request to commit with real streams, real etcd, and shims whose drivers answer at once."""
    measurement = _measurement("coordination")
    found = []

    def tell(one: Any) -> None:
        found.append(one)
        if output.json:
            click.echo(json.dumps(one.to_fields()))
        else:
            output.note(f"{one.shims} shims, {one.fronts} fronts: {one.committed.p50_ms:.0f} ms")

    asyncio.run(
        measurement.measure(
            shims or measurement.SIZES, fronts=fronts, tls=tls, count=count, tell=tell
        )
    )
    if not output.json:
        output.data.print(measurement.table(found))
