"""The file driver: copies at the cut, beside the images; roll back file by file, each at once."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path

from coordinator.core.errors import DriverError
from worker_shim.files import places
from worker_shim.files.aside import kept_before
from worker_shim.files.cutting import cut_files, expected, grown
from worker_shim.files.keeping import MEMORY_ROLES, Keep, Keeping
from worker_shim.files.links import link_file
from worker_shim.files.open_files import held_files, nameless_bytes
from worker_shim.files.port import Expected, OpenFile, Put
from worker_shim.files.rollback import roll_back_file, trouble_with
from worker_shim.files.room import trouble_with_room
from worker_shim.process.port import Tree

NAMED_MAX = 8


class LinuxFileDriver:
    """`FileDriver` for Linux; holds nothing but a lock."""

    def __init__(self) -> None:
        """Workers of one node may have had one file open: their files go back one after another."""
        self._going_back = threading.Lock()

    def expect(self, tree: Tree, keeping: Keeping) -> Expected:
        """What a cut would take if it were made now; changes nothing, the tree may run.

        Files without a name count too: CRIU puts their contents into the images.
        """
        files = list(expected(held_files(tree), keeping))
        not_whole = tuple(
            file for file, _ in files if file.keeps is not Keep.COPY and file.kept_from
        )
        return Expected(sum(cost for _, cost in files) + nameless_bytes(tree), not_whole)

    def cut(self, tree: Tree, into: Path, *, keeping: Keeping) -> tuple[OpenFile, ...]:
        """Record (and copy, reflinked where possible) these files while the tree is stopped.

        The limit bounds what is really copied, all files together, smallest first; a file that
        shares its blocks costs nothing, and of one beyond the limit the tail is kept. Syncing is
        left to the image store. A crash leaves a partial directory. Raises DriverError naming the
        file (no room, unreadable, rewritten by somebody else meanwhile).
        """
        into.mkdir(mode=0o700, parents=True, exist_ok=True)
        files = cut_files(held_files(tree), into, keeping)
        return (*places.held_places(tree, [file.path for file in files]), *files)

    def settle(
        self, files: tuple[OpenFile, ...], copies: Path, sizes: Mapping[str, int]
    ) -> tuple[OpenFile, ...]:
        """The files with the sizes that CRIU found a moment later, which it insists on.

        They differ where somebody outside the job wrote to them, and what was kept then grows.
        Raises DriverError where one was rewritten.
        """
        return tuple(_settled(file, copies, sizes.get(file.path)) for file in files)

    def check(self, files: tuple[OpenFile, ...], copies: Path) -> None:
        """Raise DriverError naming every file that a roll back here could not put back.

        Changes nothing, and may be asked while the older run still writes: what it says no to
        stays so, what it says yes to may still fail.
        """
        found = [error for file in files if (error := _trouble(file, copies)) is not None]
        found += trouble_with_room(files, copies)
        if not found:
            return
        more = f" (and {len(found) - 1} more files)" if len(found) > 1 else ""
        raise DriverError(
            f"{found[0].what}{more}",
            advice=found[0].advice,
            details=tuple(f"{error.what}; {error.advice}" for error in found[:NAMED_MAX]),
        )

    def roll_back(
        self, files: tuple[OpenFile, ...], copies: Path, *, label: str, by: str = ""
    ) -> tuple[Put, ...]:
        """Make every file what it was at the cut; return what is worth telling.

        A file that grew is cut back and its tail kept as `NAME.after-<label>`; one whose kept part
        differs is put back whole and the newer one kept aside under that name; a missing file is
        made from its copy, or from its tail with a hole before it. Control page and shared memory
        are put back and nothing of them kept. Directories and FIFOs that are missing are made, and
        names of one file are names of one file again. Every file changes at once or not at all,
        and the whole can be repeated. Raises DriverError for a file that is missing, shorter or
        different and of which too little is kept.
        """
        with self._going_back:
            for place in (file for file in files if file.role in places.ROLES):
                places.put_back(place)
            told: list[Put] = []
            contents = [file for file in files if file.role not in places.ROLES]
            for file in sorted(contents, key=lambda file: bool(file.same_as)):
                one = link_file if file.same_as else partial(roll_back_file, copies=copies)
                told += _with_earlier(file, one(file, label=label, by=by), label)
            return tuple(told)


def _with_earlier(file: OpenFile, told: tuple[Put, ...], label: str) -> Iterator[Put]:
    """And what roll backs before have kept: the one that a crash ended told nobody."""
    yield from told
    if file.role in MEMORY_ROLES:
        return
    now = {put.aside for put in told}
    for place in kept_before(Path(file.path), label):
        if str(place) not in now:
            yield Put(file.path, "before", str(place), place.lstat().st_size)


def _trouble(file: OpenFile, copies: Path) -> DriverError | None:
    if file.role in places.ROLES:
        return places.trouble_with(file)
    if file.same_as:
        return None
    return trouble_with(file, copies)


def _settled(file: OpenFile, copies: Path, size_bytes: int | None) -> OpenFile:
    if size_bytes is None or size_bytes == file.size_bytes or file.role in places.ROLES:
        return file
    if file.same_as:
        return replace(file, size_bytes=size_bytes)
    return grown(file, copies, size_bytes)
