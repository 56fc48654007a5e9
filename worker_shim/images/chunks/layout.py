"""Manifest version 2: which chunks make up a worker's files, and in which packs they are.

    magic, blake3 of what follows, sealed zstd of msgpack

The digest of the whole is what the snapshot's record holds. The one inside tells damage apart where
a manifest is read as a base, whose record the node does not have.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import msgspec
import numpy as np
import zstandard
from blake3 import blake3
from numpy.typing import NDArray

from coordinator.core.errors import DriverError
from worker_shim.images import manifest as version_1
from worker_shim.images.chunks.table import Digests, as_digests
from worker_shim.images.port import Manifest
from worker_shim.images.sealing import Sealing

VERSION = 2
NAME = "manifest"
MAGIC = b"allstopM"
_HEAD_BYTES = len(MAGIC) + 32

Numbers = NDArray[np.uint32]


@dataclass(frozen=True)
class Pack:
    """A pack that the manifest refers to."""

    name: str
    size_bytes: int


@dataclass(frozen=True)
class Layout:
    """Where every byte of a worker's files is. A file's bytes in no chunk are zeros."""

    packs: tuple[Pack, ...]
    # one of each for every different chunk
    digests: Digests
    raw: Numbers  # its size
    pack: Numbers  # which of the packs
    offset: Numbers  # in the pack
    stored: Numbers  # its size there
    codec: NDArray[np.uint8]
    # one for each file
    pieces: Numbers  # how many pieces it has
    # one of each for every piece of a file, file after file
    chunk: Numbers  # which of the chunks
    at: NDArray[np.uint64]  # where in the file

    def spans(self) -> list[tuple[int, int]]:
        """For each file, from which to which piece it goes."""
        ends = np.cumsum(self.pieces, dtype=np.int64).tolist()
        return list(zip([0, *ends[:-1]], ends, strict=True))

    def files(self) -> NDArray[np.int64]:
        """For each piece, which file it belongs to."""
        return np.repeat(np.arange(len(self.pieces)), self.pieces)


class _Encoded(msgspec.Struct):
    version: int
    about: Manifest
    packs: list[tuple[str, int]]
    digests: bytes
    raw: bytes
    pack: bytes
    offset: bytes
    stored: bytes
    codec: bytes
    pieces: bytes
    chunk: bytes
    at: bytes


class _Head(msgspec.Struct):
    version: int


def file_digest(digests: Digests, starts: NDArray[np.uint64], size_bytes: int) -> str:
    """The digest of a file: of its chunks' digests, where they are, and its size."""
    whole = blake3(size_bytes.to_bytes(8, "little"))
    whole.update(np.ascontiguousarray(digests).tobytes())
    whole.update(np.ascontiguousarray(starts).tobytes())
    return str(whole.hexdigest())


def encode(manifest: Manifest, layout: Layout, name: str, sealing: Sealing) -> bytes:
    """Write a manifest for the object of this name."""
    plain = msgspec.msgpack.encode(
        _Encoded(
            VERSION,
            replace(manifest, version=VERSION),
            [(pack.name, pack.size_bytes) for pack in layout.packs],
            *(np.ascontiguousarray(getattr(layout, each)).tobytes() for each in _COLUMNS),
        )
    )
    sealed = sealing.seal(zstandard.ZstdCompressor(level=3).compress(plain), name.encode())
    return MAGIC + blake3(sealed).digest() + sealed


def decode(encoded: bytes, name: str, digest: str, sealing: Sealing) -> tuple[Manifest, Layout]:
    """Read a manifest after checking it against `digest`, or, where that is "", against its own.

    Raises DriverError for other bytes than those committed, and for a version not known here.
    """
    if digest and version_1.digest_of(encoded) != digest:
        raise version_1.not_committed(NAME, digest, version_1.digest_of(encoded))
    head, sealed = encoded[:_HEAD_BYTES], encoded[_HEAD_BYTES:]
    if head != MAGIC + blake3(sealed).digest():
        raise DriverError(f"{name} in the image store is no manifest, or damaged")
    try:
        plain = zstandard.ZstdDecompressor().decompress(sealing.open(sealed, name.encode()))
        version = msgspec.msgpack.decode(plain, type=_Head).version
        if version != VERSION:
            raise version_1.unknown(NAME, version)
        found = msgspec.msgpack.decode(plain, type=_Encoded)
    except (zstandard.ZstdError, msgspec.MsgspecError) as error:
        raise DriverError(f"{name} cannot be read", details=(str(error),)) from error
    return found.about, _layout(found)


_COLUMNS = ("digests", "raw", "pack", "offset", "stored", "codec", "pieces", "chunk", "at")
_TYPES = {"codec": np.uint8, "at": np.uint64}


def _layout(found: _Encoded) -> Layout:
    packs = tuple(Pack(name, size) for name, size in found.packs)
    columns = {
        each: np.frombuffer(getattr(found, each), _TYPES.get(each, np.uint32))
        for each in _COLUMNS[1:]
    }
    return Layout(packs, as_digests(found.digests), **columns)


def pack_numbers(packs: Sequence[Pack]) -> dict[str, int]:
    """Which pack has which number."""
    return {pack.name: number for number, pack in enumerate(packs)}
