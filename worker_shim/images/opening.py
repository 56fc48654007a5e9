"""An image store from how people name it."""

from __future__ import annotations

from pathlib import Path

from coordinator.core.errors import SetupError
from worker_shim.images.chunk_store import MEET_S, ChunkStore
from worker_shim.images.chunks.pace import Limits
from worker_shim.images.objects.directory import IDENTITY
from worker_shim.images.objects.opening import StoreOptions, open_sealed, scheme_of


def open_store(
    where: str | StoreOptions,
    node: str = "",
    *,
    make: bool = True,
    limits: Limits | None = None,
    verify_full: bool = False,
    meet_s: float = MEET_S,
) -> ChunkStore:
    """Open the store for a node's shim, or (no node) for looking at it.

    `where` is a directory or an address with a scheme; `StoreOptions` say also with which key, and
    what partners need. `make`: a directory that is no store yet becomes one; else SetupError, and
    nothing is made. Raises as `open_sealed`: BadRequest, DriverError, SetupError, WrongKey.
    Whoever opens partners closes their objects.
    """
    options = where if isinstance(where, StoreOptions) else StoreOptions(where, node)
    if not make and scheme_of(options.where) == "directory":
        _require_store(Path(options.where))
    opened = open_sealed(options)
    return ChunkStore(
        opened.objects,
        sealing=opened.sealing,
        limits=limits,
        verify_full=verify_full,
        meet_s=meet_s,
    )


def _require_store(root: Path) -> None:
    if not (root / IDENTITY).is_file():
        raise SetupError(
            f"{root} is no image store",
            advice="--store names the one that the shims use; it must be mounted here",
        )
