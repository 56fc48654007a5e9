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

    What the older run has of shared memory goes before it is needed, so that this is held against
    the whole of /dev/shm, which in a container may be 64 MiB.
    """
    found: dict[str, DriverError] = {}
    need: dict[tuple[int, bool], int] = defaultdict(int)  # by device, and whether it is memory
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
            continue
        device, memory = os.stat(directory).st_dev, file.role in MEMORY_ROLES
        need[device, memory] += _new_bytes(file, copies) if memory else _bytes_for(file, copies)
        places.setdefault(device, directory)
    return [*found.values(), *_full(need, places)]


def _full(need: dict[tuple[int, bool], int], places: dict[int, str]) -> Iterable[DriverError]:
    for (device, memory), need_bytes in need.items():
        room = os.statvfs(places[device])
        room_bytes = (room.f_blocks if memory else room.f_bavail) * room.f_frsize
        if need_bytes > room_bytes:
            yield DriverError(
                f"the file system of {places[device]} has {room_bytes >> 10} KiB"
                f"{' in all' if memory else ' free'}, and putting files back there takes "
                f"{need_bytes >> 10} KiB",
                advice="make room there, or restore on another node",
            )


def _bytes_for(file: OpenFile, copies: Path) -> int:
    """What is written for it at least: a new file, and what is kept aside."""
    new_bytes = _new_bytes(file, copies)
    try:
        now = os.lstat(file.path)
    except OSError:
        return new_bytes
    if now.st_size >= file.size_bytes:
        return min(now.st_size - file.size_bytes, now.st_blocks * 512)
    return new_bytes + now.st_blocks * 512


def _new_bytes(file: OpenFile, copies: Path) -> int:
    if file.same_as or not file.content:
        return 0
    return (copies / file.content).stat().st_blocks * 512


def _there(directory: Path) -> str:
    """The nearest directory that exists."""
    while not directory.is_dir() and directory != directory.parent:
        directory = directory.parent
    return str(directory)
