"""Packs: many chunks in one object, with an index at the end that carries its own digest.

    chunk … chunk  index  footer
    index   sealed zstd of msgpack: digests, sizes, stored sizes, codecs, in the chunks' order
    footer  magic, where the index begins, its size, blake3 of its bytes

A chunk is compressed where that saves something, then sealed with its digest as context.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import cast

import msgspec
import numpy as np
import zstandard
from blake3 import blake3
from numpy.typing import NDArray

from coordinator.core.errors import DriverError
from worker_shim.images.chunks.table import Digests, as_digests
from worker_shim.images.objects.port import ObjectStore, Part
from worker_shim.images.sealing import Sealing

PACK_BYTES = 24 << 20  # a pack is closed when it has so many
PLAIN, ZSTD = 0, 1
LEVEL = 1
SAVES = 15 / 16  # compressed larger than this share: left as it is, for the sake of restores
MAGIC = b"allstop2"
FOOTER = struct.Struct("<8sQI32s")
INDEX_GUESS_BYTES = 1 << 16  # one read brings the index of most packs


@dataclass(frozen=True)
class Index:
    """What a pack holds, by position."""

    digests: Digests
    raw: NDArray[np.uint32]  # sizes of the chunks
    stored: NDArray[np.uint32]  # their sizes in the pack
    codecs: NDArray[np.uint8]

    @property
    def offsets(self) -> NDArray[np.uint32]:
        """Where each chunk begins in the pack."""
        ends = np.cumsum(self.stored, dtype=np.uint64)
        return (ends - self.stored).astype(np.uint32)


class _Encoded(msgspec.Struct):
    digests: bytes
    raw: bytes
    stored: bytes
    codecs: bytes


class NotPacked(Exception):
    """The bytes of a chunk in a pack are not what they should be; says how in a few words."""


class Packer:
    """Fills packs; each thread has its own."""

    def __init__(self, sealing: Sealing) -> None:
        """Empty."""
        self._sealing = sealing
        self._compressor = zstandard.ZstdCompressor(level=LEVEL, write_checksum=False)
        self._begin()

    def _begin(self) -> None:
        self.size_bytes = 0
        self._parts: list[bytes] = []
        self._digests = bytearray()
        self._numbers: list[tuple[int, int, int]] = []

    def add(self, digest: bytes, data: Part) -> None:
        """Put one chunk behind the others."""
        codec, piece = ZSTD, cast(Part, self._compressor.compress(data))
        if len(piece) > len(data) * SAVES:
            codec, piece = PLAIN, data
        sealed = self._sealing.seal(piece, digest)
        self._parts.append(sealed)
        self._digests += digest
        self._numbers.append((len(data), len(sealed), codec))
        self.size_bytes += len(sealed)

    def close(self, name: str) -> tuple[list[bytes], Index]:
        """The parts of the object of this name, and its index; the packer is empty again."""
        raw, stored, codecs = np.array(self._numbers, np.uint32).T
        index = Index(as_digests(self._digests), raw, stored, codecs.astype(np.uint8))
        plain = msgspec.msgpack.encode(
            _Encoded(
                *(bytes(self._digests), raw.tobytes(), stored.tobytes()), index.codecs.tobytes()
            )
        )
        sealed = self._sealing.seal(self._compressor.compress(plain), name.encode())
        footer = FOOTER.pack(MAGIC, self.size_bytes, len(sealed), blake3(sealed).digest())
        parts = [*self._parts, sealed, footer]
        self._begin()
        return parts, index


def read_index(objects: ObjectStore, name: str, sealing: Sealing) -> tuple[Index, int]:
    """The index of a pack, verified, and the pack's size; raises DriverError, ObjectMissing."""
    size = objects.size(name)
    start = max(0, size - INDEX_GUESS_BYTES)
    end = objects.get(name, start=start)
    if start + len(end) != size or len(end) < FOOTER.size:
        raise _damaged(name, "it is truncated")
    magic, begin, count, digest = FOOTER.unpack(end[-FOOTER.size :])
    if magic != MAGIC or begin + count + FOOTER.size != size:
        raise _damaged(name, "its last bytes are not those of a pack")
    if begin < start:
        end = objects.get(name, start=begin)
        start = begin
    sealed = end[begin - start : begin - start + count]
    if blake3(sealed).digest() != digest:
        raise _damaged(name, "its index is not what was written")
    return _decoded(sealing.open(sealed, name.encode()), name), size


def _decoded(compressed: bytes, name: str) -> Index:
    try:
        plain = zstandard.ZstdDecompressor().decompress(compressed)
        found = msgspec.msgpack.decode(plain, type=_Encoded)
    except (zstandard.ZstdError, msgspec.MsgspecError) as error:
        raise _damaged(name, "its index cannot be read") from error
    return Index(
        as_digests(found.digests),
        np.frombuffer(found.raw, np.uint32),
        np.frombuffer(found.stored, np.uint32),
        np.frombuffer(found.codecs, np.uint8),
    )


class Unpacker:
    """Opens chunks; each thread has its own."""

    def __init__(self, sealing: Sealing) -> None:
        """Ready."""
        self._sealing = sealing
        self._decompressor = zstandard.ZstdDecompressor()

    def chunk(self, piece: Part, digest: bytes, codec: int, raw: int) -> bytes | Part:
        """The chunk in a piece of a pack, its digest not checked yet.

        Raises NotPacked, and what sealing raises.
        """
        opened = self._sealing.open(piece, digest) if self._sealing.overhead_bytes else piece
        if codec == ZSTD:
            try:
                claimed = zstandard.get_frame_parameters(opened).content_size
                if claimed != raw:
                    raise NotPacked("other bytes than were committed")
                return self._decompressor.decompress(opened)
            except zstandard.ZstdError:
                raise NotPacked("other bytes than were committed") from None
        return opened


def _damaged(name: str, what: str) -> DriverError:
    return DriverError(
        f"{name} in the image store is damaged: {what}",
        advice="the image store is damaged; `allstop verify` names what needs it",
    )
