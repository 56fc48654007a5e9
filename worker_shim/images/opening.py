"""One function that makes an image store of what an operator names it by."""

from __future__ import annotations

from pathlib import Path

from coordinator.core.errors import SetupError
from worker_shim.images.directory import IDENTITY, DirectoryStore
from worker_shim.images.port import ImageStore


def open_store(where: str, node: str = "", *, make: bool = True) -> ImageStore:
    """The store of that name, for the shim of a node or, without one, for somebody who reads.

    `make`: a directory that is no store yet becomes one; else SetupError, and nothing is made.
    """
    root = Path(where)
    if not make and not (root / IDENTITY).is_file():
        raise SetupError(
            f"{where} is no image store",
            advice="--store names the one that the shims use; it must be mounted here",
        )
    return DirectoryStore(root, node)
