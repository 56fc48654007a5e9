"""How snapshots are kept, as plain values with messages of the same names; see `model`."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Retention:
    """Which snapshots of a job stay; see `retention`."""

    keep_last: int = 0  # so many of the newest stay; 0: no such rule
    keep_for_s: float = 0.0  # those younger stay; 0: no such rule
    keep_bytes: int = 0  # the oldest go beyond so many stored bytes; 0: no limit


@dataclass(frozen=True)
class KeptImages:
    """Images of one worker in the image store."""

    place: str  # of the manifest
    digest: str


@dataclass(frozen=True)
class Cleaned:
    """What was removed from an image store, or would be."""

    objects: int = 0
    freed_bytes: int = 0
    snapshots: tuple[str, ...] = ()  # that were deleted
    attempts: tuple[str, ...] = ()  # that are over, and of which something was there
    unknown: tuple[str, ...] = ()  # in the store and not in this control plane: left alone
    dry_run: bool = False
