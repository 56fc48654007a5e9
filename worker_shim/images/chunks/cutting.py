"""Cutting a file into chunks whose boundaries follow its content, page by page.

A boundary lies behind a page whose sum says so, so that runs of equal pages are cut alike wherever
they are; at the seams of mappings; and around pages of zeros, which are in no chunk. The sum costs
a small part of what the hash costs, and is taken while the pages are in the processor's cache.
"""

from __future__ import annotations

import os
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from blake3 import blake3
from numpy.typing import NDArray

PAGE_BYTES = 4096
PAGE_WORDS = PAGE_BYTES // 8
DIGEST_BYTES = 32
CHUNK_PAGES_MIN, CHUNK_PAGES_MAX = 4, 64
BOUNDARY_SHARE = 1 / 13  # of pages; with the limits above chunks have 16 pages in the mean
BLOCK_PAGES = 256  # read at once; small enough to stay in the cache until it is hashed
_SPREAD = np.uint64(0x9E3779B97F4A7C15)
_BELOW = np.uint64(int(2**64 * BOUNDARY_SHARE))

Words = NDArray[np.uint64]
Hash = Callable[[memoryview], bytes]
Spent = Callable[[int], None]  # bytes that were read; may wait, may raise CopyStopped


def hasher(key: bytes) -> Hash:
    """How chunks get their names."""
    if key:
        return lambda data: blake3(data, key=key).digest()
    return lambda data: blake3(data).digest()


@dataclass
class Cuts:
    """The chunks of one file, in order; what lies between them is zeros."""

    name: str
    size_bytes: int = 0
    digests: bytearray = field(default_factory=bytearray)
    starts: list[NDArray[np.uint64]] = field(default_factory=list)
    lengths: list[NDArray[np.uint32]] = field(default_factory=list)
    _begun: list[tuple[int, int]] = field(default_factory=list)

    def add(self, start: int, length: int, digest: bytes) -> None:
        """The next chunk."""
        self.digests += digest
        self._begun.append((start, length))

    def settle(self) -> None:
        """Keep what was added in few bytes."""
        if self._begun:
            pairs = np.array(self._begun, dtype=np.uint64)
            self.starts.append(pairs[:, 0].copy())
            self.lengths.append(pairs[:, 1].astype(np.uint32))
            self._begun.clear()

    @property
    def all_starts(self) -> NDArray[np.uint64]:
        """Where each chunk begins in the file."""
        return np.concatenate(self.starts) if self.starts else np.zeros(0, np.uint64)

    @property
    def all_lengths(self) -> NDArray[np.uint32]:
        """How many bytes each has."""
        return np.concatenate(self.lengths) if self.lengths else np.zeros(0, np.uint32)


def cut(path: Path, name: str, seams: Sequence[int], named: Hash, spent: Spent) -> Cuts:
    """Read a file once and cut it; raises OSError, and whatever `spent` raises."""
    cuts = Cuts(name)
    buffer = bytearray(BLOCK_PAGES * PAGE_BYTES)
    view = memoryview(buffer)
    kept = at = 0  # bytes that the buffer holds still; where in the file the buffer begins
    with open(path, "rb", buffering=0) as reader:
        ended = False
        while not ended:
            filled, ended = _fill(reader.fileno(), view, kept)
            pieces, done = _pieces(buffer, filled, ended, _within(seams, at, filled))
            for start, stop in pieces:
                piece = view[start:stop]
                cuts.add(at + start, stop - start, named(piece))
            cuts.settle()
            spent(filled - kept)
            view[: filled - done] = view[done:filled]
            kept, at = filled - done, at + done
    cuts.size_bytes = at + kept
    return cuts


def _fill(descriptor: int, view: memoryview, kept: int) -> tuple[int, bool]:
    filled = kept
    while filled < len(view):
        count = os.readv(descriptor, [view[filled:]])
        if not count:
            return filled, True
        filled += count
    return filled, False


def _within(seams: Sequence[int], at: int, filled: int) -> list[int]:
    """The seams in this part of the file, as pages of it."""
    first = at // PAGE_BYTES
    begin, end = bisect_left(seams, first), bisect_right(seams, first + filled // PAGE_BYTES)
    return [seam - first for seam in seams[begin:end]]


def _pieces(
    buffer: bytearray, filled: int, ended: bool, seams: list[int]
) -> tuple[list[tuple[int, int]], int]:
    """The chunks in the buffer, and how far they are certain; the rest is for the next block."""
    pages = filled // PAGE_BYTES
    words = np.frombuffer(buffer, np.uint64, pages * PAGE_WORDS).reshape(pages, PAGE_WORDS)
    sums = np.add.reduce(words, axis=1)
    marks: list[int] = np.flatnonzero(sums * _SPREAD < _BELOW).tolist()
    pieces: list[tuple[int, int]] = []
    certain = False
    for begin, end in _runs_of_data(words, sums):
        while begin < end:
            stop, certain = _end(begin, end, marks, seams)
            if not certain and stop == pages and not ended:
                return pieces, begin * PAGE_BYTES
            pieces.append((begin * PAGE_BYTES, stop * PAGE_BYTES))
            begin = stop
    if ended and any(memoryview(buffer)[pages * PAGE_BYTES : filled]):
        tail = (pages * PAGE_BYTES, filled)
        if pieces and pieces[-1][1] == tail[0] and not certain:
            tail = (pieces.pop()[0], filled)
        pieces.append(tail)
    return pieces, filled


def _end(begin: int, end: int, marks: list[int], seams: list[int]) -> tuple[int, bool]:
    """Where a chunk ends, and whether it would whatever followed the run of data it is in."""
    at = bisect_right(seams, begin)
    seam = seams[at] if at < len(seams) else end + 1
    at = bisect_left(marks, begin + CHUNK_PAGES_MIN - 1)
    mark = marks[at] + 1 if at < len(marks) else end + 1
    own = min(seam, mark, begin + CHUNK_PAGES_MAX)
    return min(own, end), own <= end


def _runs_of_data(words: Words, sums: Words) -> list[tuple[int, int]]:
    """Where pages stand that are not zeros."""
    data = sums != 0
    for page in np.flatnonzero(~data).tolist():
        data[page] = words[page].any()
    edges = np.flatnonzero(np.diff(data, prepend=False, append=False)).tolist()
    return list(zip(edges[::2], edges[1::2], strict=True))
