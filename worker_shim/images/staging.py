"""Staging: the node's own disk, where a dump lands before it is in the store.

    <root>/<job>/<worker>/<action>/
        owner         name of the node whose shim made it
        kept          all of it is stored; it stays for a restore here
        images/       what CRIU wrote
        files/        copies of files that were open for writing at the cut

Everything but `owner` and `kept` goes to the store and comes back from it under the same names.
What is stored may stay here, so that a restore on this node needs no store; it goes where room is
needed, and when the worker's next images are stored.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from coordinator.core.errors import DriverError
from worker_shim.images.names import checked_name

OWNER = "owner"
KEPT = "kept"
IMAGES = "images"
FILES = "files"

Images = tuple[str, int, str]  # job, worker, action


class Staging:
    """The staging directory of one node's shim; several shims of one machine may share the root."""

    def __init__(self, root: Path, node: str, *, keep: bool = True) -> None:
        """Use `root` for `node`; it is made when missing, readable by its owner only.

        `keep`: what is stored may stay while there is room.
        """
        self.root = root
        self.node = node
        self._keep = keep
        self._kept: dict[Images, int] = {}  # bytes; oldest first
        self._lock = threading.Lock()
        root.mkdir(mode=0o700, parents=True, exist_ok=True)

    def place(self, job: str, worker: int, action: str) -> Path:
        """Where the images of this worker of this attempt or restore are."""
        return self.root / checked_name(job, "job") / str(worker) / checked_name(action, "action")

    def create(
        self, job: str, worker: int, action: str, *, need_bytes: int, using: str = ""
    ) -> Path:
        """Make an empty place with room for `need_bytes`; raises DriverError when there is not.

        Kept images make room, but for those of `using`, an action of the same worker: a restore is
        about to use them, and needs no room for what they have.
        """
        need_bytes = max(0, need_bytes - self._kept.get((job, worker, using), 0))
        free = self._make_room(need_bytes, sparing=(job, worker, using))
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
        with self._lock:
            self._kept.pop((job, worker, action), None)
        _remove(self.place(job, worker, action))

    def settle(self, job: str, worker: int, action: str) -> bool:
        """Keep the images of an action that are stored now, if that leaves room, else drop them.

        Earlier ones of the worker are dropped. Returns whether they are kept.
        """
        place = self.place(job, worker, action)
        size = sum(listed(place).values())
        keep = self._keep and self._room_bytes() >= size
        if keep and in_memory(self.root):
            keep = free_memory() >= size
        with self._lock:
            self._kept[(job, worker, action)] = size
        for images in self.kept():
            earlier = images[:2] == (job, worker) and images[2] != action
            if earlier and not self._in_use(images):
                self.drop(*images)
        if keep:
            (place / KEPT).touch()
        else:
            self.drop(job, worker, action)
        return keep

    def kept(self) -> tuple[Images, ...]:
        """What is kept of images that are stored, oldest first."""
        with self._lock:
            return tuple(self._kept)

    def drop_kept(self, job: str = "", worker: int = -1) -> None:
        """Drop the kept images of a worker, or all; but those that a restore is using."""
        for images in self.kept():
            if job in ("", images[0]) and worker in (-1, images[1]) and not self._in_use(images):
                self.drop(*images)

    def sweep(self) -> tuple[str, ...]:
        """At start: remove what an earlier shim of this node left; returns what went."""
        swept = []
        for owner in sorted(self.root.glob(f"*/*/*/{OWNER}")):
            if owner.read_text() == self.node:
                _remove(owner.parent)
                swept.append(str(owner.parent.relative_to(self.root)))
        return tuple(swept)

    def free_bytes(self) -> int:
        """Room left for an ordinary user, and what kept images would leave."""
        with self._lock:
            return self._room_bytes() + sum(self._kept.values())

    def _make_room(self, need_bytes: int, *, sparing: Images) -> int:
        """Drop kept images, oldest first, until there is so much; returns how much there is."""
        for images in self.kept():
            if self._room_bytes() >= need_bytes:
                break
            if images != sparing and not self._in_use(images):
                self.drop(*images)
        return self._room_bytes()

    def _in_use(self, images: Images) -> bool:
        """A restore of a worker has links to what is kept of it, as long as its own place is."""
        job, worker, _ = images
        beside = self.root / job / str(worker)
        try:
            return any((job, worker, each.name) not in self._kept for each in beside.iterdir())
        except FileNotFoundError:
            return False

    def _room_bytes(self) -> int:
        room = os.statvfs(self.root)
        return room.f_bavail * room.f_frsize


def in_memory(directory: Path) -> bool:
    """Whether files there take memory of the node."""
    device = directory.stat().st_dev
    wanted = f"{os.major(device)}:{os.minor(device)}"
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        words = line.split()
        if words[2] == wanted:
            return words[words.index("-") + 1] in ("tmpfs", "ramfs")
    return False


def free_memory() -> int:
    """Bytes that the node could still give, as the kernel estimates it."""
    for line in Path("/proc/meminfo").read_text().splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) << 10
    return 0


def listed(place: Path) -> dict[str, int]:
    """Every regular file below a place but our own marks: its name there and its size in bytes.

    Empty when there is no such place. Raises OSError when a file vanishes meanwhile. The worker
    stands still for it: pathlib would take five times as long.
    """
    if not place.is_dir():
        return {}
    top = len(f"{place}/")
    sizes = {entry.path[top:]: entry.stat().st_size for entry in _files_below(str(place))}
    for mark in (OWNER, KEPT):
        sizes.pop(mark, None)
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
