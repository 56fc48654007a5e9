"""Further names of one file: they are names of one file again after a roll back."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from coordinator.core.errors import DriverError
from worker_shim.files.aside import equal, keep_whole, new_name
from worker_shim.files.copying import sync_parent
from worker_shim.files.keeping import MEMORY_ROLES
from worker_shim.files.port import OpenFile, Put


def link_file(file: OpenFile, label: str, by: str) -> tuple[Put, ...]:
    """Make the path a name of `same_as`, which is put back already; at once, and repeatable.

    What stands there otherwise is kept aside if its content differs. Raises DriverError.
    """
    path, first = Path(file.path), Path(file.same_as)
    try:
        told: tuple[Put, ...] = ()
        if os.path.lexists(path):
            if os.path.samestat(path.lstat(), first.lstat()):
                return ()
            if not stat.S_ISREG(path.lstat().st_mode):
                raise DriverError(
                    f"{path} was another name of {first} at the checkpoint and is no file now",
                    advice="move what is there away",
                )
            if file.role not in MEMORY_ROLES and not equal(first, path):
                kept = keep_whole(path, label, by)
                told = (Put(file.path, "replaced", str(kept), kept.stat().st_size),)
        path.parent.mkdir(parents=True, exist_ok=True)
        new = new_name(path, by)
        new.unlink(missing_ok=True)
        os.link(first, new)
        os.replace(new, path)
        sync_parent(path)
    except OSError as error:
        raise DriverError(
            f"cannot make {path} another name of {first} again: {error.strerror}",
            advice="both must be on one file system",
        ) from error
    return told
