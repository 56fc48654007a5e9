"""An image store from how people name it."""

from __future__ import annotations

from pathlib import Path

from worker_shim.images.chunk_store import MEET_S, ChunkStore
from worker_shim.images.chunks.pace import Limits
from worker_shim.images.objects.directory import DirectoryObjects


def open_store(
    where: str,
    node: str = "",
    *,
    limits: Limits | None = None,
    verify_full: bool = False,
    meet_s: float = MEET_S,
) -> ChunkStore:
    """Open the store at `where`, a directory, for a node's shim, or (no node) for looking at it.

    Raises DriverError when it cannot be used.
    """
    objects = DirectoryObjects(Path(where), node)
    return ChunkStore(objects, limits=limits, verify_full=verify_full, meet_s=meet_s)
