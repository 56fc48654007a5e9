"""From what somebody wrote after `--store` to an open store of objects."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from coordinator.core.errors import AllstopError, BadRequest
from worker_shim.images.keys import key_from
from worker_shim.images.objects.address import SCHEMES, Address
from worker_shim.images.objects.directory import DirectoryObjects
from worker_shim.images.objects.partner.ring import SCHEME as PARTNER
from worker_shim.images.objects.partner.ring import Ring
from worker_shim.images.objects.port import ObjectStore
from worker_shim.images.sealing import Sealing, sealing_of

if TYPE_CHECKING:
    from grpc import ChannelCredentials, ServerCredentials

KINDS = "a directory, s3://bucket/prefix, gs://…, az://…, or partner://NODE@HOST:PORT,…"


@dataclass(frozen=True)
class StoreOptions:
    """Which store a node uses, and what it needs to open it."""

    where: str  # a directory, or an address with a scheme
    node: str = ""
    key: str = ""  # file:PATH, env:NAME, command:COMMAND; empty: not encrypted
    keep_dir: Path | None = None  # partners: this node's own disk for it
    listen: str = ""  # partners: host:port to answer at; empty: as the ring says
    limit_bytes: int = 0  # partners: of what is kept for others; 0: what the disk holds
    serve: bool = True  # partners: keep objects for others while this is open
    client: ChannelCredentials | None = None  # partners: how they are dialled; None: plain
    server: ServerCredentials | None = None  # partners: how they are answered; None: plain


@dataclass(frozen=True)
class Opened:
    """A store of objects, and what is done to bytes on their way there."""

    objects: ObjectStore
    sealing: Sealing


def scheme_of(where: str) -> str:
    """`directory`, or the scheme of an address; raises BadRequest for one that there is not."""
    scheme, separator, _ = where.partition("://")
    if not separator:
        return "directory"
    if scheme not in (*SCHEMES, PARTNER):
        raise BadRequest(f"there is no kind of store named {scheme!r}", advice=KINDS)
    return scheme


def checked_where(where: str) -> str:
    """Return what could be opened, as far as words can tell; raises BadRequest."""
    scheme = scheme_of(where)
    if scheme == PARTNER:
        Ring.parse(where)
    elif scheme != "directory":
        Address.parse(where)
    return where


def open_sealed(options: StoreOptions) -> Opened:
    """Open the store and find out how it is sealed.

    Raises BadRequest for an address that makes no sense, DriverError for a store that cannot be
    reached or used, WrongKey, SetupError (no key, a port that is taken); nothing stays open then.
    """
    key = key_from(options.key)
    objects = open_objects(options)
    try:
        return Opened(objects, sealing_of(objects, key))
    except BaseException:
        with suppress(AllstopError):
            objects.close()
        raise


def open_objects(options: StoreOptions) -> ObjectStore:
    """The store of objects alone; raises as `open_sealed`."""
    scheme = scheme_of(options.where)
    if scheme == "directory":
        return DirectoryObjects(Path(options.where).absolute(), options.node)
    if scheme == PARTNER:
        return _open_ring(options)
    from worker_shim.images.objects.cloud import CloudStore  # loads a library of 20 MB

    return CloudStore(options.where)


def _open_ring(options: StoreOptions) -> ObjectStore:
    from worker_shim.images.objects.partner.belonging import Belonging
    from worker_shim.images.objects.partner.client import Limits, Partner
    from worker_shim.images.objects.partner.keeping import Keeping
    from worker_shim.images.objects.partner.service import PartnerServer, PartnerService
    from worker_shim.images.objects.partner.store import PartnerStore

    if options.keep_dir is None or not options.node:
        raise BadRequest("partners need this node's name and a directory on its own disk")
    ring = Ring.parse(options.where)
    member, others = ring.own(options.node), ring.after(options.node)
    if not others:
        raise BadRequest(
            f"{ring} has no partner for {options.node}", advice="name at least two nodes"
        )
    own = DirectoryObjects(options.keep_dir / "own", options.node)
    kept = Keeping(
        DirectoryObjects(options.keep_dir / "kept", options.node), limit_bytes=options.limit_bytes
    )
    belonging, server = Belonging(ring.identity, own), None
    if member is not None and options.serve:
        service = PartnerService(belonging, own, kept)
        server = PartnerServer(options.listen or member.address, service, options.server)
    partners = [Partner(each, belonging, options.client, Limits()) for each in others]
    return PartnerStore(ring, own, kept, partners, server)
