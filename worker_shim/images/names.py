"""Names that become parts of paths: jobs, attempts, and files inside a manifest."""

from __future__ import annotations

import re
from pathlib import Path, PurePosixPath

from coordinator.core.errors import BadRequest, DriverError

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")


def checked_name(name: str, what: str) -> str:
    """Return `name` when it is safe as one part of a path; raise BadRequest otherwise."""
    if not _NAME.fullmatch(name):
        raise BadRequest(
            f"{what} {name!r} cannot be used as a directory name",
            advice="use letters, digits, dots, dashes and underscores, at most 128 of them",
        )
    return name


def inside(root: Path, relative: str) -> Path:
    """Join a name that came from elsewhere; raise DriverError when it would leave `root`."""
    parts = PurePosixPath(relative).parts
    if not parts or relative.startswith("/") or ".." in parts:
        raise DriverError(f"{relative!r} is not a place inside {root}")
    return root.joinpath(*parts)


def checked_place(place: str) -> str:
    """Return the place of a worker's images when it can be one; raise DriverError otherwise."""
    parts = place.split("/")
    if len(parts) != 3 or not all(_NAME.fullmatch(part) for part in parts):
        raise DriverError(f"{place!r} is not a place inside the image store")
    return place
