"""Directories and FIFOs that a tree needs to find again where it comes back.

CRIU opens working directories and FIFOs by name and binds unix sockets to their paths, but makes
none of the directories on the way. Programs keep such places in /tmp (a DataLoader's
/tmp/pymp-…, torchrun's /tmp/torchelastic_…) and remove them when they end, and another node never
had them.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable, Iterator
from pathlib import Path

from coordinator.core.errors import DriverError
from worker_shim.files.open_files import PROC, kernel_devices
from worker_shim.files.port import OpenFile
from worker_shim.process.port import Tree

DIRECTORY, FIFO = "directory", "fifo"
ROLES = (DIRECTORY, FIFO)
DELETED = " (deleted)"
SOCKET = "socket:["


def held_places(tree: Tree, files: Iterable[str] = ()) -> tuple[OpenFile, ...]:
    """Every such place with its mode and owner, outer directories first.

    `files` are others that are to be made there, by their paths.
    """
    wanted = {os.path.dirname(path) for path in files}
    fifos: set[str] = set()
    for pid in tree.pids:
        for path in (*_links(pid), *_sockets(pid)):
            kind = _kind(path)
            if kind is not None and stat.S_ISFIFO(kind):
                fifos.add(path)
            wanted.add(path if kind is not None and stat.S_ISDIR(kind) else os.path.dirname(path))
    directories = {str(each) for path in wanted for each in (Path(path), *Path(path).parents)}
    not_real = kernel_devices()
    found = [
        *_recorded(sorted(directories, key=len), DIRECTORY, not_real),
        *_recorded(sorted(fifos), FIFO, not_real),
    ]
    return tuple(place for place in found if place.path != "/")


def put_back(place: OpenFile) -> None:
    """Make the place if it is not there; raises DriverError when something else is there."""
    try:
        if not os.path.lexists(place.path):
            _make(place)
        elif error := trouble_with(place):
            raise error
    except OSError as error:
        raise DriverError(
            f"cannot make the {place.role} {place.path}, which the job had: {error.strerror}",
            advice="make it by hand",
        ) from error


def trouble_with(place: OpenFile) -> DriverError | None:
    """What stands where the place should be; None where it is there, or nothing is."""
    if not os.path.lexists(place.path):
        return None
    kind = _kind(place.path) or 0
    # A directory may be a link to one, as people move things to other disks.
    if os.path.isdir(place.path) if place.role == DIRECTORY else stat.S_ISFIFO(kind):
        return None
    return DriverError(
        f"{place.path} was a {place.role} at the checkpoint and is none now",
        advice="move what is there away",
    )


def _make(place: OpenFile) -> None:
    if place.role == DIRECTORY:
        os.mkdir(place.path, 0o700)
    else:
        os.mkfifo(place.path, 0o600)
    if place.uid >= 0:
        os.chown(place.path, place.uid, place.gid)
    os.chmod(place.path, place.mode)


def _recorded(paths: Iterable[str], role: str, not_real: frozenset[int]) -> Iterator[OpenFile]:
    for path in paths:
        try:
            status = os.lstat(path)
        except OSError:
            continue
        if status.st_dev in not_real or stat.S_ISLNK(status.st_mode):
            continue
        mode = stat.S_IMODE(status.st_mode)
        yield OpenFile(path, 0, mode, role=role, uid=status.st_uid, gid=status.st_gid)


def _kind(path: str) -> int | None:
    try:
        return os.lstat(path).st_mode
    except OSError:
        return None


def _links(pid: int) -> Iterator[str]:
    """Working directory, and what is open by a name (deleted files: CRIU makes them anew there)."""
    places = [PROC / str(pid) / "cwd"]
    try:
        places += (PROC / str(pid) / "fd").iterdir()
    except OSError:
        return
    for place in places:
        try:
            target = os.readlink(place)
        except OSError:
            continue
        if target.startswith("/"):
            yield target.removesuffix(DELETED)


def _sockets(pid: int) -> Iterator[str]:
    """Paths that the process's unix sockets are bound to."""
    own = set()
    try:
        for place in (PROC / str(pid) / "fd").iterdir():
            target = os.readlink(place)
            if target.startswith(SOCKET):
                own.add(target[len(SOCKET) : -1])
        lines = (PROC / str(pid) / "net" / "unix").read_text(errors="surrogateescape").splitlines()
    except OSError:
        return
    for line in lines[1:]:
        fields = line.split(maxsplit=7)
        if len(fields) == 8 and fields[6] in own and fields[7].startswith("/"):
            yield fields[7]
