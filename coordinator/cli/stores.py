"""Options that say where images are kept; of the shim, and of whoever looks at its store."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from coordinator.cli.options import directory, option
from coordinator.cli.output import Output
from coordinator.cli.sizes import Size

if TYPE_CHECKING:
    from worker_shim.images.objects.opening import StoreOptions

Function = TypeVar("Function", bound=Callable[..., Any])

STORE_DIRECTORY = Path("/var/lib/allstop/store")
PARTNER_DIRECTORY = Path("/var/lib/allstop/partner")


def store_options(function: Function) -> Function:
    """Where images are kept, with which key, and what partners need."""
    for add in reversed(
        (
            option(
                "--store", default=str(STORE_DIRECTORY), show_default=True, metavar="WHERE",
                help="Image store: a directory that all nodes see, s3://bucket/prefix, gs://…, "
                "az://…, or partner://NODE@HOST:PORT,… where nodes keep copies for each other.",
            ),
            option(
                "--store-key", default="", metavar="SOURCE",
                help="Encrypts what is stored: file:PATH, env:NAME or command:COMMAND gives 32 "
                "bytes.  [default: not encrypted]",
            ),
            directory(
                "--partner-dir", default=PARTNER_DIRECTORY, show_default=True,
                help="Partners: this node's copies; local disk.",
            ),
            option(
                "--partner-listen", default="", metavar="ADDR",
                help="Partners: host:port to answer at.  [default: as --store says]",
            ),
            option(
                "--partner-limit", type=Size(), metavar="BYTES",
                help="Partners: how much of others is kept here, such as 500G.  "
                "[default: what the disk holds]",
            ),
        )
    ):  # fmt: skip
        function = add(function)
    return function


def persist_options(function: Function) -> Function:
    """What PERSIST may take of its node."""
    for add in reversed(
        (
            option(
                "--persist-rate", type=Size(), metavar="BYTES/S",
                help="How fast images may go to the store, such as 200M.  [default: as fast as "
                "it goes]",
            ),
            option(
                "--persist-cpu", type=click.FloatRange(0, 64, min_open=True), metavar="CORES",
                help="Share of one core that hashing and storing may take, such as 0.5.  "
                "[default: what the job leaves]",
            ),
            option(
                "--persist-verify", type=click.Choice(("index", "full")),
                help="What is read back before a snapshot counts: each pack's index, or every "
                "byte.  [default: index]",
            ),
            option(
                "--keep-images/--drop-images", default=None,
                help="Keep stored images in staging while there is room, for a restore here.  "
                "[default: keep]",
            ),
        )
    ):  # fmt: skip
        function = add(function)
    return function


def where_of(output: Output, node: str, given: dict[str, Any]) -> StoreOptions:
    """The store that the options name, for the shim of `node`; nothing is opened.

    Raises BadRequest for an address that makes no sense, and for partners in plain TCP beyond
    this machine unless --insecure says so; SetupError for certificates that cannot be used.
    """
    from worker_shim.images.keys import checked_source
    from worker_shim.images.objects.opening import StoreOptions, checked_where, scheme_of
    from worker_shim.images.objects.partner.ring import SCHEME as PARTNER

    where, key = checked_where(given["store"]), checked_source(given["store_key"])
    if scheme_of(where) == "directory":
        return StoreOptions(str(Path(where).absolute()), node, key)
    if scheme_of(where) != PARTNER:
        return StoreOptions(where, node, key)
    from coordinator.link.security import channel_credentials, server_credentials

    _require_safe(output, node, where, given["partner_listen"])
    return StoreOptions(
        where=where,
        node=node,
        key=key,
        keep_dir=given["partner_dir"].absolute(),
        listen=given["partner_listen"],
        limit_bytes=int(given["partner_limit"] or 0),
        client=channel_credentials(output.tls),
        server=server_credentials(output.tls),
    )


def _require_safe(output: Output, node: str, where: str, listen: str) -> None:
    from coordinator.security.plain import require_encrypted
    from worker_shim.images.objects.partner.ring import Ring

    if output.tls.wanted:
        return
    ring = Ring.parse(where)
    own = ring.own(node)
    others = [each.address for each in ring.after(node)]
    require_encrypted(others, "dialling the partner at", insecure=output.insecure)
    if own is not None:
        answers = [listen or own.address]
        require_encrypted(answers, "listening for partners on", insecure=output.insecure)
