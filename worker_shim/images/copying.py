"""What everything that moves bytes of images needs."""

from __future__ import annotations

import os
from pathlib import Path


class CopyStopped(Exception):
    """The copy was told to stop before it was whole."""


def sync_directory(directory: Path) -> None:
    """Make the names in a directory survive a loss of power."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
