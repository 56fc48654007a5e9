"""What the operating system says about a store, in our words; the one place for it."""

from __future__ import annotations

import errno
from pathlib import Path

from coordinator.core.errors import DriverError, StoreAway


def store_error(error: OSError, root: Path, *, definite: bool = True) -> DriverError:
    """Full, read-only, or not to be used at all; bytes that cannot be read are no store away."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        what, advice = f"no room left under {root}", "make room, or delete old snapshots"
    elif error.errno in (errno.ENOTEMPTY, errno.EEXIST):
        what, advice = f"{error.filename2 or error.filename} exists already", ""
    elif error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
        what, advice = f"{root} may not be written", "the shim needs write access to it"
    else:
        what, advice = f"{root} cannot be used", "is the shared file system mounted?"
    away = error.errno not in (errno.ENOSPC, errno.EDQUOT, errno.ENOTEMPTY, errno.EEXIST, errno.EIO)
    kind = StoreAway if away else DriverError
    return kind(what, advice=advice, definite=definite, details=(str(error),))
