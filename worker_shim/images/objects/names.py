"""Names of objects, which may become paths and parts of URLs."""

from __future__ import annotations

import re

from coordinator.core.errors import DriverError

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*(/[A-Za-z0-9._-]+)*")
NAME_CHARS_MAX = 900  # S3 takes 1,024 bytes, our prefix among them


def checked_object(name: str) -> str:
    """Return a name that is safe in every store; raises DriverError for another one."""
    parts = name.split("/")
    if not _NAME.fullmatch(name) or len(name) > NAME_CHARS_MAX or {"..", "."} & set(parts):
        raise DriverError(f"{name[:80]!r} cannot be the name of an object")
    return name
