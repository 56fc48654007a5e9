"""Images of this node's last puts that are in staging still: a restore here needs no store.

A file is believed by the rule of `known`, or hashed again. What is gone from staging is simply not
used.
"""

from __future__ import annotations

import os
import threading
import time
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from worker_shim.images.chunks.layout import Layout
from worker_shim.images.known import TICK_S, KnownFiles
from worker_shim.images.port import Manifest, StoredFile

KEPT_MAX = 16  # layouts in memory, some 60 bytes a chunk each
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

    def images(self, place: str, digest: str) -> LocalImages:
        """What is here of a place whose manifest has been verified."""
        with self._lock:
            kept = self._kept.get(place)
        return LocalImages(kept, self._known)


class LocalImages:
    """The files of one place as far as they are in staging."""

    def __init__(self, kept: Kept | None, known: KnownFiles) -> None:
        """Looks at nothing yet."""
        self._kept, self._known = kept, known

    def link(self, file: StoredFile, target: Path) -> bool:
        """Give a file that is here and as it was stored a second name, if it is a large one.

        A symbolic one: a hard link would change the ctime that the file is known by.
        """
        if self._kept is None or file.size_bytes < LINK_BYTES_MIN:
            return False
        source = self._kept.staged / file.name
        try:
            if self._known.digest(source) != file.digest:
                return False
            os.symlink(os.path.abspath(source), target)
        except OSError:
            return False
        return True


def names(files: Sequence[StoredFile]) -> tuple[str, ...]:
    """Of the files."""
    return tuple(file.name for file in files)
