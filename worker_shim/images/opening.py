"""An image store from how people name it."""

from __future__ import annotations

from worker_shim.images.chunk_store import MEET_S, ChunkStore
from worker_shim.images.chunks.pace import Limits
from worker_shim.images.objects.opening import StoreOptions, open_sealed


def open_store(
    where: str | StoreOptions,
    node: str = "",
    *,
    limits: Limits | None = None,
    verify_full: bool = False,
    meet_s: float = MEET_S,
) -> ChunkStore:
    """Open the store for a node's shim, or (no node) for looking at it.

    `where` is a directory or an address with a scheme; `StoreOptions` say also with which key, and
    what partners need. Raises as `open_sealed`: BadRequest, DriverError, SetupError, WrongKey.
    Whoever opens partners closes their objects.
    """
    options = where if isinstance(where, StoreOptions) else StoreOptions(where, node)
    opened = open_sealed(options)
    return ChunkStore(
        opened.objects,
        sealing=opened.sealing,
        limits=limits,
        verify_full=verify_full,
        meet_s=meet_s,
    )
