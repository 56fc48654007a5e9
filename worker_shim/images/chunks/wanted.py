"""The chunks of a put: what they are, and where each is in the store as far as that is known."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from worker_shim.images.chunks.cutting import DIGEST_BYTES, Cuts
from worker_shim.images.chunks.layout import Layout
from worker_shim.images.chunks.packs import Index
from worker_shim.images.chunks.table import Digests, Places, Table, as_digests, distinct

BATCH_BYTES = 4 << 20  # neighbours in a file that stay neighbours in a pack
NOWHERE = -1

T = TypeVar("T", bound=np.generic)
Number = Callable[[str, int], int]  # of a pack by its name and size


@dataclass
class Wanted:
    """The different chunks of a worker's files, and where each is in the store as far as known."""

    digests: Digests
    raw: NDArray[np.uint32]
    file: NDArray[np.int64]  # where each stands first
    start: NDArray[np.uint64]
    pack: Places = field(init=False)
    offset: NDArray[np.uint32] = field(init=False)
    stored: NDArray[np.uint32] = field(init=False)
    codec: NDArray[np.uint8] = field(init=False)

    def __post_init__(self) -> None:
        """Nothing is known to be anywhere."""
        count = len(self.digests)
        self.pack = np.full(count, NOWHERE, np.int64)
        self.offset, self.stored = np.zeros(count, np.uint32), np.zeros(count, np.uint32)
        self.codec = np.zeros(count, np.uint8)

    def nowhere(self) -> Places:
        """The chunks that are not in the store yet."""
        return np.flatnonzero(self.pack == NOWHERE)

    def are_in(self, pack: int, chunks: Places, index: Index, at: Places) -> None:
        """These chunks are in the pack of this number, at these places of its index."""
        self.pack[chunks] = pack
        self.offset[chunks], self.stored[chunks] = index.offsets[at], index.stored[at]
        self.codec[chunks] = index.codecs[at]

    def take_from_base(self, layout: Layout, sizes: Mapping[str, int], number: Number) -> None:
        """Take what a base holds, in packs that are there with the size that they should have."""
        missing = self.nowhere()
        at = Table(layout.digests).find(self.digests[missing])
        missing, at = missing[at >= 0], at[at >= 0]
        whole = np.array([sizes.get(pack.name) == pack.size_bytes for pack in layout.packs], bool)
        here = whole[layout.pack[at]]
        chunks, at = missing[here], at[here]
        numbers = np.full(len(layout.packs), NOWHERE, np.int64)
        for used in np.unique(layout.pack[at]).tolist():
            numbers[used] = number(layout.packs[used].name, layout.packs[used].size_bytes)
        self.pack[chunks] = numbers[layout.pack[at]]
        self.offset[chunks], self.stored[chunks] = layout.offset[at], layout.stored[at]
        self.codec[chunks] = layout.codec[at]


class Missing:
    """The chunks that were nowhere when this was made, to be looked for in many packs."""

    def __init__(self, wanted: Wanted) -> None:
        """Sorts once."""
        self._wanted = wanted
        self._chunks = wanted.nowhere()
        self._table = Table(wanted.digests[self._chunks])

    def any_in(self, index: Index) -> bool:
        """Whether the pack has a chunk that is nowhere still."""
        return bool(len(self._found(index)[0]))

    def take(self, pack: int, index: Index) -> None:
        """Take what the pack has."""
        chunks, at = self._found(index)
        self._wanted.are_in(pack, chunks, index, at)

    def _found(self, index: Index) -> tuple[Places, Places]:
        found = self._table.find(index.digests)
        at = np.flatnonzero(found >= 0)
        chunks = self._chunks[found[at]]
        still = self._wanted.pack[chunks] == NOWHERE
        return chunks[still], at[still]


def chunks_of(cuts: Sequence[Cuts]) -> tuple[Wanted, Places]:
    """The different chunks of all files, and which of them each piece of a file is."""
    digests = as_digests(b"".join(each.digests for each in cuts))
    counts = [len(each.digests) // DIGEST_BYTES for each in cuts]
    files = np.repeat(np.arange(len(cuts)), counts)
    lengths = joined([each.all_lengths for each in cuts], np.uint32)
    starts = joined([each.all_starts for each in cuts], np.uint64)
    first, which = distinct(digests)
    return Wanted(digests[first], lengths[first], files[first], starts[first]), which


def joined(arrays: Sequence[NDArray[T]], kind: type[T]) -> NDArray[T]:
    """One array of all."""
    return np.concatenate(arrays) if arrays else np.zeros(0, kind)


def batches_of(chunks: Places, raw: NDArray[np.uint32]) -> Iterator[Places]:
    """Neighbours together, some megabytes each."""
    ends = np.cumsum(raw[chunks], dtype=np.int64) // BATCH_BYTES
    return iter(np.split(chunks, np.flatnonzero(np.diff(ends)) + 1))
