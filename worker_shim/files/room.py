"""Whether there is room for what a roll back will write, and whether it may be written."""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path

from coordinator.core.errors import DriverError
from worker_shim.files.keeping import MEMORY_ROLES
from worker_shim.files.places import ROLES
from worker_shim.files.port import OpenFile


def trouble_with_room(files: Iterable[OpenFile], copies: Path) -> list[DriverError]:
    """One error for every directory that cannot be written, and every file system without room.

    Shared memory is not counted: what the older run has of it goes before it is needed.
    """
    found: dict[str, DriverError] = {}
    need: dict[int, int] = defaultdict(int)
    places: dict[int, str] = {}
    for file in files:
        if file.role in ROLES:
            continue
        directory = _there(Path(file.path).parent)
        if not os.access(directory, os.W_OK):
            found[directory] = DriverError(
                f"{directory} cannot be written, and {file.path} is to be put back there",
                advice="mount it read-write, as on the node where the job was saved",
            )
        elif file.role not in MEMORY_ROLES:
            device = os.stat(directory).st_dev
            need[device] += _bytes_for(file, copies)
            places.setdefault(device, directory)
    return [*found.values(), *_full(need, places)]


def _full(need: dict[int, int], places: dict[int, str]) -> Iterable[DriverError]:
    for device, need_bytes in need.items():
        room = os.statvfs(places[device])
        free_bytes = room.f_bavail * room.f_frsize
        if need_bytes > free_bytes:
            yield DriverError(
                f"the file system of {places[device]} has {free_bytes >> 10} KiB free, and putting "
                f"files back there takes {need_bytes >> 10} KiB",
                advice="make room there, or restore on another node",
            )


def _bytes_for(file: OpenFile, copies: Path) -> int:
    """What is written for it at least: a new file, and what is kept aside."""
    new_bytes = (copies / file.content).stat().st_blocks * 512 if file.content else 0
    try:
        now = os.lstat(file.path)
    except OSError:
        return 0 if file.same_as else new_bytes
    if now.st_size >= file.size_bytes:
        return min(now.st_size - file.size_bytes, now.st_blocks * 512)
    return new_bytes + now.st_blocks * 512


def _there(directory: Path) -> str:
    """The nearest directory that exists."""
    while not directory.is_dir() and directory != directory.parent:
        directory = directory.parent
    return str(directory)
