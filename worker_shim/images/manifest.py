"""The manifest as bytes: canonical JSON, so that one digest stands for all of a worker's images."""

from __future__ import annotations

import msgspec
from blake3 import blake3

from coordinator.core.errors import DriverError
from worker_shim.images.port import Manifest

VERSION = 1
FILE_NAME = "manifest.json"


class _Head(msgspec.Struct):
    """Only the field that says how to read the rest."""

    version: int


def encode(manifest: Manifest) -> bytes:
    """Write a manifest; equal manifests give equal bytes."""
    return msgspec.json.encode(manifest, order="sorted")


def digest_of(encoded: bytes) -> str:
    """blake3 of the encoded manifest, hex."""
    return str(blake3(encoded).hexdigest())


def decode(encoded: bytes, digest: str) -> Manifest:
    """Read a manifest after checking it against the digest that the snapshot's record holds.

    Raises DriverError for other bytes than those committed, and for a version not known here.
    """
    found = digest_of(encoded)
    if found != digest:
        raise not_committed(FILE_NAME, digest, found)
    try:
        version = msgspec.json.decode(encoded, type=_Head).version
        if version == VERSION:
            return msgspec.json.decode(encoded, type=Manifest)
    except msgspec.MsgspecError as error:
        raise DriverError(f"{FILE_NAME} cannot be read", details=(str(error),)) from error
    raise unknown(FILE_NAME, version)


def not_committed(name: str, wanted: str, found: str) -> DriverError:
    """These bytes are not those whose digest the snapshot's record holds."""
    return DriverError(
        f"{name} is not the one that was committed",
        advice="the image store is damaged; restore an older snapshot",
        details=(f"expected blake3 {wanted}", f"found blake3 {found}"),
    )


def unknown(name: str, version: int) -> DriverError:
    """A later allstop wrote it."""
    return DriverError(
        f"{name} has version {version}, which this shim cannot read",
        advice="run the same version of allstop on all nodes",
    )
