"""Options that several verbs share. Each has an environment variable: ALLSTOP_ and its name."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

from coordinator.cli.config_file import rank
from coordinator.cli.durations import Duration
from coordinator.cli.output import Output

Function = TypeVar("Function", bound=Callable[..., Any])

GPU_ENGINES = ("auto", "library", "program", "none")  # as in worker_shim/cuda/choosing


def option(*names: str, **settings: Any) -> Callable[[Function], Function]:
    """`click.option` with the environment variable ALLSTOP_NAME, shown in the help."""
    long = next(name for name in names if name.startswith("--")).split("/")[0]
    settings.setdefault("envvar", "ALLSTOP_" + long.lstrip("-").upper().replace("-", "_"))
    settings.setdefault("show_envvar", True)
    return click.option(*names, **settings)


def _counts(ctx: click.Context, param: click.Parameter) -> bool:
    """Whether a value wins over the one from before the verb: a flag does, and the later of two."""
    output, name = ctx.ensure_object(Output), param.name or ""
    wins = rank(ctx, name) >= output.ranks.get(name, 0)
    if wins:
        output.ranks[name] = rank(ctx, name)
    return wins


def _remember_coordinators(
    ctx: click.Context, param: click.Parameter, value: tuple[str, ...]
) -> None:
    addresses = [part for text in value for part in text.split(",") if part]
    if addresses and _counts(ctx, param):
        ctx.ensure_object(Output).coordinators = tuple(addresses)


def _remember_format(ctx: click.Context, param: click.Parameter, value: str | None) -> None:
    if value and _counts(ctx, param):
        ctx.ensure_object(Output).format = value


def _remember_tls(ctx: click.Context, param: click.Parameter, value: Path | str | None) -> None:
    if value and _counts(ctx, param):
        ctx.ensure_object(Output).tls_files[param.name or ""] = value


def _remember_insecure(ctx: click.Context, param: click.Parameter, value: bool) -> None:
    if value and _counts(ctx, param):
        ctx.ensure_object(Output).insecure = True


insecure_option = option(
    "--insecure",
    is_flag=True,
    expose_value=False,
    callback=_remember_insecure,
    help="Plain TCP may leave this machine: whoever is on the network may read and stop jobs.",
)


def file(name: str, text: str, **settings: Any) -> Callable[[Function], Function]:
    """An option that takes a file, which must be there."""
    kind = click.Path(exists=True, dir_okay=False, path_type=Path)
    return option(name, type=kind, metavar="FILE", help=text, **settings)


def tls_options(function: Function) -> Function:
    """What encrypts TCP connections; may stand before or after the verb."""
    kept = {"expose_value": False, "callback": _remember_tls}
    ca = "Authorities of the other side's certificate, PEM; a coordinator then asks everybody "
    for add in (
        option(
            "--tls-server-name", default="", metavar="NAME", **kept,
            help="Name in the coordinators' certificates.  [default: the address dialled]",
        ),
        file("--tls-key", "Its key, PEM.", **kept),
        file("--tls-cert", "Certificate to show to the other side, PEM.", **kept),
        file("--tls-ca", f"{ca}for a certificate.", **kept),
    ):  # fmt: skip
        function = add(function)
    return insecure_option(function)


# These may stand before or after the verb; the one nearer to the end of the line wins.
coordinator_option = option(
    "--coordinator",
    "coordinators",
    multiple=True,
    metavar="ADDR",
    expose_value=False,
    callback=_remember_coordinators,
    help="host:port or unix:PATH, may be repeated.  [default: the socket of `allstop up`, then "
    "127.0.0.1:7411]",
)


def connection(function: Function) -> Function:
    """How to reach a coordinator."""
    return coordinator_option(tls_options(function))


output_option = option(
    "-o",
    "--output",
    type=click.Choice(["table", "json"]),
    expose_value=False,
    callback=_remember_format,
    help="What goes to stdout.  [default: table]",
)


def asking(function: Function) -> Function:
    """The options of every verb that asks a coordinator."""
    return connection(output_option(function))


job_argument = click.argument("job")
deadline_option = option(
    "--deadline",
    "deadline_s",
    type=Duration(),
    default=0.0,
    metavar="DURATION",
    help="For the whole of it, such as 90s or 5m.  [default: the coordinator's policy]",
)
snapshot_option = option(
    "--snapshot", default="", metavar="ID", help="Which one.  [default: the newest]"
)

_on_mismatch = option(
    "--on-mismatch",
    type=click.Choice(["fail", "cold-start"]),
    default="fail",
    show_default=True,
    help="Where no nodes fit the snapshot: refuse, or start the job's commands from scratch.",
)
_old_addresses = option(
    "--old-addresses",
    type=click.Choice(["refuse", "keep", "move"]),
    default="refuse",
    show_default=True,
    help="Where such commands (or their environment) name hosts that are others now: refuse, keep "
    "the names, or replace addresses by those of the nodes that take the workers.",
)


def mismatch_options(function: Function) -> Function:
    """What to do where no nodes fit a snapshot."""
    return _on_mismatch(_old_addresses(function))


def directory(name: str, **settings: Any) -> Callable[[Function], Function]:
    """An option that takes a directory, which is made when it is missing."""
    return option(name, type=click.Path(file_okay=False, path_type=Path), metavar="DIR", **settings)


def gpu_engine(**settings: Any) -> Callable[[Function], Function]:
    """Who saves device memory on a node."""
    kinds = click.Choice(GPU_ENGINES)
    return option("--gpu-engine", type=kinds, default="auto", show_default=True, **settings)
