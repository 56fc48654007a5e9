"""`allstop certs init` and `allstop certs issue`"""

from __future__ import annotations

from pathlib import Path

import click

from coordinator.cli.options import option, output_option
from coordinator.cli.output import Output, state_directory
from coordinator.cli.verb import verb_group

directory_option = option(
    "--authority",
    type=click.Path(file_okay=False, path_type=Path),
    metavar="DIR",
    help="Where the authority's files are.  [default: ~/.local/state/allstop/certs]",
)


def _place(given: Path | None) -> Path:
    return (given or state_directory() / "certs").absolute()


@verb_group(
    examples=(
        "allstop certs init",
        "allstop certs issue coordinator c0 --host 10.0.0.1",
        "allstop certs issue shim node-7",
        "allstop certs issue operator ada",
    )
)
def certs() -> None:
    """Make certificates: an authority of your own, and with it one for each process and person.

    An authority that you have does as well: docs/security.md says what its certificates must hold.
    """


@certs.command(
    examples=("allstop certs init", "allstop certs init --authority /root/allstop-ca"),
    exits=(0, 2, 14),
)
@directory_option
@output_option
@click.pass_obj
def init(output: Output, authority: Path | None) -> None:
    """Make an authority: a key that must stay secret, and a certificate that everybody gets."""
    from coordinator.security.authority import make_authority

    made = make_authority(_place(authority))
    told = {"certificate": str(made.certificate), "key": str(made.key)}
    output.emit(
        told, lambda: f"{made.certificate}: give it to everybody\n{made.key}: keep it secret"
    )


@certs.command(
    examples=(
        "allstop certs issue coordinator c0 --host 10.0.0.1 --host allstop.example.org",
        "allstop certs issue shim node-7 --into /etc/allstop --days 30",
        "allstop certs issue viewer eve -o json",
    ),
    exits=(0, 2, 14),
)
@click.argument("role", type=click.Choice(["coordinator", "shim", "operator", "viewer"]))
@click.argument("name")
@option("--host", "hosts", multiple=True, metavar="NAME", help="A coordinator's: name or address.")
@option(
    "--days", type=click.IntRange(1, 3650), default=90, show_default=True, metavar="N",
    help="How long it counts.",
)  # fmt: skip
@option(
    "--into",
    type=click.Path(file_okay=False, path_type=Path),
    metavar="DIR",
    help="Where to write.  [default: the authority's directory]",
)
@directory_option
@output_option
@click.pass_obj
def issue(
    output: Output,
    role: str,
    name: str,
    hosts: tuple[str, ...],
    days: int,
    into: Path | None,
    authority: Path | None,
) -> None:
    """Make a certificate for one process or person.

    NAME is the node for a shim, and anything that tells people apart for the others.
    """
    from coordinator.core.errors import BadRequest
    from coordinator.link.names import check_name
    from coordinator.security.authority import issue as issue_one
    from coordinator.security.roles import Holder, Role

    check_name(role, name)
    if role == "coordinator" and not hosts:
        raise BadRequest(
            "a coordinator's certificate needs the names or addresses it is dialled at",
            advice="--host 10.0.0.1, may be repeated",
        )
    place = _place(authority)
    made = issue_one(place, Holder(Role(role), name), hosts, into=into or place, days=days)
    told = {"certificate": str(made.certificate), "key": str(made.key), "holder": str(made.holder)}
    until = made.until.strftime("%Y-%m-%d")
    output.emit(told, lambda: f"{made.certificate} and {made.key}, of {made.holder}, until {until}")
