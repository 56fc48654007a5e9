"""Staging: the node's own disk, where a dump lands before it is in the store.

    <root>/<job>/<worker>/<action>/
        owner         name of the node whose shim made it
        images/       what CRIU wrote
        files/        copies of files that were open for writing at the cut

Everything but `owner` goes to the store and comes back from it under the same names.
"""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from coordinator.core.errors import DriverError
from worker_shim.images.names import checked_name

OWNER = "owner"
IMAGES = "images"
FILES = "files"


class Staging:
    """The staging directory of one node's shim; several shims of one machine may share the root."""

    def __init__(self, root: Path, node: str) -> None:
        """Use `root` for `node`; it is made when missing, readable by its owner only."""
        self.root = root
        self.node = node
        root.mkdir(mode=0o700, parents=True, exist_ok=True)

    def place(self, job: str, worker: int, action: str) -> Path:
        """Where the images of this worker of this attempt or restore are."""
        return self.root / checked_name(job, "job") / str(worker) / checked_name(action, "action")

    def create(self, job: str, worker: int, action: str, *, need_bytes: int) -> Path:
        """Make an empty place with room for `need_bytes`; raises DriverError when there is not."""
        free = self.free_bytes()
        if free < need_bytes:
            raise DriverError(
                f"staging has {_mib(free)} MiB free and the worker needs {_mib(need_bytes)} MiB",
                advice=f"make room under {self.root} or give the shim another --staging directory",
            )
        place = self.place(job, worker, action)
        _remove(place)
        for directory in (place, place / IMAGES, place / FILES):
            directory.mkdir(mode=0o700, parents=True)
        (place / OWNER).write_text(self.node)
        return place

    def drop(self, job: str, worker: int, action: str) -> None:
        """Remove the place; no error when there is none."""
        _remove(self.place(job, worker, action))

    def sweep(self) -> tuple[str, ...]:
        """At start: remove what an earlier shim of this node left; returns what went."""
        swept = []
        for owner in sorted(self.root.glob(f"*/*/*/{OWNER}")):
            if owner.read_text() == self.node:
                _remove(owner.parent)
                swept.append(str(owner.parent.relative_to(self.root)))
        return tuple(swept)

    def free_bytes(self) -> int:
        """Room left for an ordinary user."""
        room = os.statvfs(self.root)
        return room.f_bavail * room.f_frsize


def listed(place: Path) -> dict[str, int]:
    """Every regular file below a place but the owner's mark: its name there and its size in bytes.

    Empty when there is no such place. Raises OSError when a file vanishes meanwhile. The worker
    stands still for it: pathlib would take five times as long.
    """
    if not place.is_dir():
        return {}
    top = len(f"{place}/")
    sizes = {entry.path[top:]: entry.stat().st_size for entry in _files_below(str(place))}
    sizes.pop(OWNER, None)
    return {name: sizes[name] for name in sorted(sizes, key=lambda name: name.split("/"))}


def _files_below(directory: str) -> Iterator[os.DirEntry[str]]:
    with os.scandir(directory) as entries:
        for entry in entries:
            if entry.is_dir(follow_symlinks=False):
                yield from _files_below(entry.path)
            elif entry.is_file():
                yield entry


def _remove(place: Path) -> None:
    """Take the owner's mark away last, so that a sweep still finds what a crash left.

    Two may remove one place at once: what the other has taken is gone, and no error.
    """
    if not place.exists():
        return
    with contextlib.suppress(FileNotFoundError):
        for entry in tuple(place.iterdir()):
            if entry.name == OWNER:
                continue
            if entry.is_dir() and not entry.is_symlink():
                shutil.rmtree(entry, onerror=_unless_gone)
            else:
                entry.unlink(missing_ok=True)
        (place / OWNER).unlink(missing_ok=True)
        place.rmdir()


def _unless_gone(function: object, path: str, raised: tuple[Any, BaseException, Any]) -> None:
    if not isinstance(raised[1], FileNotFoundError):
        raise raised[1]


def _mib(size: int) -> int:
    return size // (1 << 20)
