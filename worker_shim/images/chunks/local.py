"""Images of this node's last puts that are in staging still: a restore here needs no store.

A file is believed by the rule of `known`, or hashed again. What is gone from staging is simply not
used.
"""

from __future__ import annotations

import os
import threading
import time
from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from worker_shim.images.chunks.layout import Layout
from worker_shim.images.chunks.table import Digests, Places, Table
from worker_shim.images.known import TICK_S, KnownFiles
from worker_shim.images.port import Manifest, StoredFile

KEPT_MAX = 16  # layouts in memory, some 60 bytes a chunk each
SOURCE_CHUNKS = 256  # that a thread reads in one go
LINK_BYTES_MIN = 1 << 20  # smaller ones, which a restore may rewrite, are copied


@dataclass(frozen=True)
class Kept:
    """One put whose files may be in staging still."""

    staged: Path
    manifest: Manifest
    layout: Layout


class Local:
    """The last puts of this shim; safe to use from several threads."""

    def __init__(self) -> None:
        """None yet."""
        self._known = KnownFiles()
        self._kept: OrderedDict[str, Kept] = OrderedDict()
        self._lock = threading.Lock()

    def remember(self, place: str, kept: Kept) -> None:
        """Take what was just hashed and published."""
        time.sleep(TICK_S)
        for file in kept.manifest.files:
            if file.size_bytes >= LINK_BYTES_MIN:
                self._known.remember(kept.staged / file.name, file.digest)
        with self._lock:
            self._kept[place] = kept
            while len(self._kept) > KEPT_MAX:
                self._kept.popitem(last=False)

    def layout(self, place: str) -> Layout | None:
        """The layout of a put, whether or not its files are there still."""
        with self._lock:
            kept = self._kept.get(place)
        return kept.layout if kept else None

    def forget(self, place: str) -> None:
        """It was deleted from the store."""
        with self._lock:
            self._kept.pop(place, None)

    def images(self, place: str) -> LocalImages:
        """What is here that can be of use for a place, its own files first."""
        with self._lock:
            kept = dict(self._kept)
        own = kept.pop(place, None)
        return LocalImages(own, tuple(reversed(kept.values())), self._known)


@dataclass(frozen=True)
class Source:
    """Chunks that should be in a file here, and where; nobody has looked yet."""

    path: Path
    chunks: Places
    starts: NDArray[np.uint64]


class LocalImages:
    """What a fetch can take from staging."""

    def __init__(self, own: Kept | None, others: tuple[Kept, ...], known: KnownFiles) -> None:
        """Looks at nothing yet; `others` are of other places and may have chunks in common."""
        self._own, self._known = own, known
        self._all = (*((own,) if own else ()), *others)

    def link(self, file: StoredFile, target: Path) -> bool:
        """Give a file that is here and as it was stored a second name, if it is a large one.

        A symbolic one: a hard link would change the ctime that the file is known by.
        """
        if self._own is None or file.size_bytes < LINK_BYTES_MIN:
            return False
        source = self._own.staged / file.name
        try:
            if self._known.digest(source) != file.digest:
                return False
            os.symlink(os.path.abspath(source), target)
        except OSError:
            return False
        return True

    def sources(self, digests: Digests, chunks: Places) -> Iterator[Source]:
        """Where these chunks may be; each is named once at most."""
        for kept in self._all:
            if not len(chunks) or not kept.staged.is_dir():
                continue
            at = Table(kept.layout.digests).find(digests[chunks])
            for source in _sources(kept, chunks[at >= 0], at[at >= 0]):
                chunks = chunks[~np.isin(chunks, source.chunks)]
                yield source


def _sources(kept: Kept, here: Places, at: Places) -> Iterator[Source]:
    layout = kept.layout
    used, first = np.unique(layout.chunk, return_index=True)
    piece = first[np.searchsorted(used, at)]
    file = layout.files()[piece]
    for number in np.unique(file).tolist():
        of_file = np.flatnonzero(file == number)
        path = kept.staged / kept.manifest.files[number].name
        if not path.exists():
            continue
        for begin in range(0, len(of_file), SOURCE_CHUNKS):
            some = of_file[begin : begin + SOURCE_CHUNKS]
            yield Source(path, here[some], layout.at[piece[some]])
