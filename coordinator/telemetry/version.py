"""Which version of allstop runs here."""

from __future__ import annotations

from functools import cache
from importlib.metadata import PackageNotFoundError, version


@cache
def own_version() -> str:
    """As installed; "unknown" in a bare source tree."""
    try:
        return version("allstop")
    except PackageNotFoundError:
        return "unknown"
