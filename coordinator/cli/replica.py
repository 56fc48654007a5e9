"""What `allstop up` and `allstop coordinator` share: options of a coordinator, and running it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, TypeVar

import click

from coordinator.cli.config_file import config_option
from coordinator.cli.durations import Duration
from coordinator.cli.options import directory, file, option, tls_options
from coordinator.cli.output import DEFAULT_PORT, SOCKET_NAME, Output, state_directory
from coordinator.core.errors import BadRequest, SetupError

DEFAULT_HTTP = "127.0.0.1:7412"
NODE_LEASE_S_MIN = 5.0  # below, a shim that is late a few times is a node lost

Function = TypeVar("Function", bound=Callable[..., Any])


def _policy(_: click.Context, __: click.Parameter, value: tuple[str, ...]) -> dict[str, float]:
    """`NAME=NUMBER` or `NAME=DURATION` as a number."""
    numbers: dict[str, float] = {}
    for text in value:
        name, _equals, number = text.partition("=")
        if not name or not number:
            raise click.BadParameter(f"{text!r} is not NAME=VALUE, such as dump_s=60s")
        if name.endswith("_s"):
            numbers[name] = Duration().convert(number, None, None)
        elif number.isdecimal():
            numbers[name] = float(number)
        else:
            raise click.BadParameter(f"{text!r}: {name} is a whole number")
    return numbers


RULES = (
    file(
        "--gpu-policy", "Rows that come before the shipped ones for what is done about"
        " sick GPUs, TOML; see docs/gpu-health.md.",
    ),
    option(
        "--policy", multiple=True, metavar="NAME=VALUE", callback=_policy,
        help="Change one deadline or limit, such as dump_s=60s; may be repeated.",
    ),
)  # fmt: skip


def replica_options(function: Function) -> Function:
    """Options of one coordinator replica."""
    function = tls_options(function)
    for add in reversed(
        (
            option(
                "--listen", multiple=True, default=(f"127.0.0.1:{DEFAULT_PORT}",), metavar="ADDR",
                show_default=True, help="host:port for shims and operators, may be repeated.",
            ),
            option(
                "--advertise", default="", metavar="HOST[:PORT]",
                help="How other coordinators reach this one.  [default: the first --listen]",
            ),
            option(
                "--fronts", type=click.IntRange(0, 64), default=0, metavar="N",
                help="Processes that carry shims in place of this one, for thousands of them.",
            ),
            option(
                "--peer", default="", metavar="ADDR",
                help="With --fronts: what this one itself listens on, for the carriers of others."
                "  [default: a free port]",
            ),
            option(
                "--http", default=DEFAULT_HTTP, metavar="ADDR", show_default=True,
                help="host:port of the page to look at and of /metrics; empty: neither.",
            ),
            file("--hook-token", "Whoever shows its content may use POST /hooks/drain of --http."),
            option(
                "--any-role", is_flag=True,
                help="With --tls-ca: its certificates need not name a role, and each may do"
                " everything.",
            ),
            directory(
                "--state-dir", help="Socket, and data of an etcd of its own.  [default: "
                "~/.local/state/allstop]",
            ),
            option("--name", default="", help="Of this replica.  [default: host name and pid]"),
            file("--etcd-ca", "Authorities for etcd's certificate, PEM."),
            file("--etcd-cert", "Certificate to show to etcd, PEM."),
            file("--etcd-key", "Its key, PEM."),
            option("--etcd-server-name", default="", help="Name in etcd's certificates."),
            option("--prefix", default="/allstop", show_default=True, help="Of all keys in etcd."),
            option(
                "--lease", "lease_s", type=Duration(), metavar="DURATION",
                help="How long a dead leader keeps the others waiting.  [default: 10s]",
            ),
            option(
                "--node-lease", "node_lease_s", metavar="DURATION",
                type=Duration(NODE_LEASE_S_MIN, "shims report once a second, a busy one later"),
                help="How long a shim may say nothing before its node counts as lost.  "
                "[default: 20s]",
            ),
            *RULES,
        )
    ):  # fmt: skip
        function = add(function)
    return config_option(function)


def serve(output: Output, *, etcd: tuple[str, ...], replica: dict[str, Any]) -> int:
    """Run one coordinator until SIGTERM or Ctrl-C; without `etcd` with one of its own.

    Raises SetupError when the state directory cannot be made.
    """
    from coordinator.server.run import CoordinatorOptions, run_coordinator

    if bool(replica["etcd_cert"]) != bool(replica["etcd_key"]):
        raise BadRequest("--etcd-cert and --etcd-key belong together")
    state = (replica["state_dir"] or state_directory()).absolute()
    try:
        state.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise SetupError(
            f"cannot make {state}: {error.strerror}", advice="--state-dir names another place"
        ) from None
    endpoints = tuple(part for text in etcd for part in text.split(",") if part)
    more = {
        name: replica[name] for name in ("lease_s", "node_lease_s") if replica[name] is not None
    }
    options = CoordinatorOptions(
        listen=tuple(replica["listen"]),
        unix_socket=state / SOCKET_NAME,
        advertise=replica["advertise"],
        fronts=replica["fronts"],
        peer=replica["peer"],
        http=replica["http"],
        hook_token=replica["hook_token"],
        http_must=replica["http"] != DEFAULT_HTTP,
        tls=output.tls,
        any_role=replica["any_role"],
        insecure=output.insecure,
        etcd=endpoints,
        etcd_ca=replica["etcd_ca"],
        etcd_certificate=replica["etcd_cert"],
        etcd_key=replica["etcd_key"],
        etcd_server_name=replica["etcd_server_name"],
        data=None if endpoints else state / "etcd",
        etcd_program=replica.get("etcd_program"),
        name=replica["name"],
        prefix=replica["prefix"],
        policy=replica["policy"],
        gpu_policy=replica["gpu_policy"],
        on_serving=lambda places: output.note(f"listening on {', '.join(places)}"),
        on_page=lambda url: output.note(f"page and metrics at {url}"),
        on_leading=lambda epoch: output.note(f"leading, epoch {epoch}"),
        **more,
    )
    return asyncio.run(run_coordinator(options))
