"""What fetch and verify share: finding a manifest, reading packs in large parts, opening chunks."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from coordinator.core.errors import DriverError
from worker_shim.images import manifest as version_1
from worker_shim.images.chunks import layout as layouts
from worker_shim.images.chunks.cutting import hasher
from worker_shim.images.chunks.layout import Layout
from worker_shim.images.chunks.packs import NotPacked, Unpacker
from worker_shim.images.chunks.table import Places
from worker_shim.images.objects.port import ObjectMissing, ObjectStore, Part
from worker_shim.images.port import Manifest
from worker_shim.images.sealing import Sealing

PART_BYTES = 8 << 20  # read at once
PART_CHUNKS = 512
GAP_BYTES = 1 << 17  # read along, since a second request costs more


def find_manifest(
    objects: ObjectStore, place: str, digest: str, sealing: Sealing
) -> tuple[Manifest, Layout | None]:
    """The manifest that was committed; no layout: it is of version 1, whole files.

    Raises DriverError when it is missing, damaged, or of an unknown version.
    """
    name = f"{place}/{layouts.NAME}"
    try:
        return layouts.decode(objects.get(name), name, digest, sealing)
    except ObjectMissing:
        pass
    try:
        encoded = objects.get(f"{place}/{version_1.FILE_NAME}")
    except ObjectMissing as error:
        raise DriverError(
            f"the image store has no {place}",
            advice="is the store mounted here the one the snapshot was written to?",
        ) from error
    return version_1.decode(encoded, digest), None


@dataclass(frozen=True)
class Read:
    """Neighbouring chunks of one pack that are read at once."""

    pack: str
    start: int
    length: int
    chunks: Places


def reads(layout: Layout, chunks: Places) -> Iterator[Read]:
    """The parts of packs in which these chunks are, in the order of their first use."""
    order = np.lexsort((layout.offset[chunks], layout.pack[chunks]))
    chunks = chunks[order]
    packs, begins = layout.pack[chunks], layout.offset[chunks].astype(np.int64)
    ends = begins + layout.stored[chunks]
    first = 0
    for at in range(1, len(chunks) + 1):
        if at < len(chunks) and packs[at] == packs[first] and at - first < PART_CHUNKS:
            apart = begins[at] - ends[at - 1] > GAP_BYTES
            if not apart and ends[at] - begins[first] <= PART_BYTES:
                continue
        if at > first:
            start = int(begins[first])
            pack = layout.packs[int(packs[first])].name
            yield Read(pack, start, int(ends[at - 1]) - start, chunks[first:at])
        first = at


class ChunkReader:
    """Opens the chunks of parts of packs and checks their digests; each thread has its own."""

    def __init__(self, objects: ObjectStore, layout: Layout, sealing: Sealing) -> None:
        """Ready."""
        self._objects, self._layout = objects, layout
        self._unpacker = Unpacker(sealing)
        self._named = hasher(sealing.hash_key)

    def chunks(self, read: Read) -> Iterator[tuple[int, Part | NotPacked]]:
        """Each chunk of the part, or what is wrong with it.

        Raises DriverError where the store cannot be read at all.
        """
        try:
            data = memoryview(self._objects.get(read.pack, start=read.start, length=read.length))
        except ObjectMissing:
            for chunk in read.chunks.tolist():
                yield chunk, NotPacked("missing")
            return
        for chunk in read.chunks.tolist():
            begin = int(self._layout.offset[chunk]) - read.start
            piece = data[begin : begin + int(self._layout.stored[chunk])]
            yield chunk, self._opened(chunk, piece)

    def _opened(self, chunk: int, piece: memoryview) -> Part | NotPacked:
        if len(piece) != int(self._layout.stored[chunk]):
            return NotPacked("truncated")
        digest = self._layout.digests[chunk].tobytes()
        codec, raw = int(self._layout.codec[chunk]), int(self._layout.raw[chunk])
        try:
            found = self._unpacker.chunk(piece, digest, codec, raw)
        except NotPacked as error:
            return error
        except DriverError as error:  # sealed bytes that do not open
            return NotPacked(str(error))
        if self._named(memoryview(found)) != digest:
            return NotPacked("other bytes than were committed")
        return found
