"""The file driver: copies at the cut, beside the images; roll back file by file, each at once."""

from __future__ import annotations

import os
import stat
import threading
from pathlib import Path

from coordinator.core.errors import DriverError
from worker_shim.files import places
from worker_shim.files.copying import clone, copy_contents
from worker_shim.files.open_files import Held, held_files
from worker_shim.files.port import OpenFile
from worker_shim.files.rollback import roll_back_file
from worker_shim.process.port import Tree

COPY = "file-{}"


class LinuxFileDriver:
    """`FileDriver` for Linux; holds nothing but a lock."""

    def __init__(self) -> None:
        """Workers of one node may have had one file open: their files go back one after another."""
        self._going_back = threading.Lock()

    def cut(self, tree: Tree, into: Path, *, copy_limit_bytes: int) -> tuple[OpenFile, ...]:
        """Record (and copy, reflinked where possible) these files while the tree is stopped.

        `copy_limit_bytes` bounds what is really copied, all files together, smallest first; a file
        that shares its blocks costs nothing. Syncing is left to the image store. A crash leaves a
        partial directory. Raises DriverError naming the file (no room, unreadable).
        """
        into.mkdir(mode=0o700, parents=True, exist_ok=True)
        left = copy_limit_bytes
        recorded: list[OpenFile] = []
        order = sorted(held_files(tree), key=lambda held: held.status.st_size)
        for number, held in enumerate(order):
            copied = _copy(held, into / COPY.format(number), left)
            left -= copied or 0
            name = "" if copied is None else COPY.format(number)
            recorded.append(_recorded(held, name))
        return (*places.held_places(tree), *sorted(recorded, key=lambda file: file.path))

    def roll_back(
        self, files: tuple[OpenFile, ...], copies: Path, *, label: str
    ) -> tuple[str, ...]:
        """Make every file what it was at the cut; return the places of what was kept aside.

        A file that grew is cut back and its tail kept as `NAME.after-<label>`; one whose kept part
        differs is put back whole and the newer one kept aside under that name; a missing file is
        made from its copy. Control page and shared memory are put back and nothing of them kept.
        Directories and FIFOs that are missing are made. Every file changes at once or not at all,
        and the whole can be repeated. Raises DriverError for a file that is missing or shorter and
        has no copy.
        """
        with self._going_back:
            for place in (file for file in files if file.role in places.ROLES):
                places.put_back(place)
            contents = (file for file in files if file.role not in places.ROLES)
            kept = (roll_back_file(file, copies, label) for file in contents)
            return tuple(str(path) for path in kept if path is not None)


def _recorded(held: Held, copy: str) -> OpenFile:
    return OpenFile(
        path=held.path,
        size_bytes=held.status.st_size,
        mode=stat.S_IMODE(held.status.st_mode),
        copy=copy,
        role=held.role,
        uid=held.status.st_uid,
        gid=held.status.st_gid,
    )


def _copy(held: Held, target: Path, limit_bytes: int) -> int | None:
    """Copy one file; return how many bytes that cost, or None when it is too big to be copied."""
    try:
        source = os.open(held.path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
        try:
            return _copy_open(source, held, target, limit_bytes)
        finally:
            os.close(source)
    except OSError as error:
        raise DriverError(
            f"cannot keep {held.path}, which the job has open for writing: {error.strerror}",
            advice="make room where the images are staged",
            details=(str(target),),
        ) from error


def _copy_open(source: int, held: Held, target: Path, limit_bytes: int) -> int | None:
    size = held.status.st_size
    stored = held.status.st_blocks * 512  # holes cost nothing
    copy = os.open(target, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    try:
        if clone(source, copy):
            return 0
        if min(size, stored) > limit_bytes:
            os.unlink(target)
            return None
        copy_contents(source, copy, size)
        return min(size, stored)
    finally:
        os.close(copy)
