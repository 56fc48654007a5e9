"""What the processes in the images have open: tables of descriptors, and the files behind them.

A file may be behind many descriptors, a mapping, or a working directory; all name it by its number
in files.img. Field numbers are those of CRIU's `images/fdinfo.proto`, `regfile.proto`,
`memfd.proto` and `remap-file-path.proto`.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Mapping, Set
from dataclasses import dataclass
from pathlib import Path

from worker_shim.criu.entries import Entry, damaged, read_entries
from worker_shim.criu.image_file import (
    FDINFO_MAGIC,
    FILES_MAGIC,
    MEMFD_MAGIC,
    REMAP_MAGIC,
)
from worker_shim.criu.images import (
    FILE_ID,
    FILE_REG,
    FILES,
    REG_NAME,
    REMAP_LINKED,
    REMAP_ORIG,
    REMAP_TYPE,
    REMAPS,
)
from worker_shim.criu.sockets import Socket, inet_socket, other_socket, unix_socket

FD_FILE, FD_FLAGS, FD_NUMBER = 1, 2, 4
CLOSE_ON_EXEC = 1
GONE = (REMAP_LINKED, 1)  # 1: a ghost, whose content is in the images
INET, UNIX, PACKET, NETLINK = 4, 16, 6, 7
FIFO, PIPE, MEMFD, EVENTFD, TIMERFD, EPOLL, PIDFD, EXTERNAL = 17, 18, 20, 8, 12, 9, 22, 15
KINDS = {  # the field of a file's entry that is there says what it is
    5: "namespace", EVENTFD: "eventfd", EPOLL: "epoll", 10: "signalfd", 11: "tun",
    TIMERFD: "timerfd", 13: "inotify", 14: "fanotify", EXTERNAL: "external", PIPE: "pipe",
    19: "terminal", MEMFD: "memfd", 21: "bpf map", PIDFD: "pidfd",
}  # fmt: skip
FLAGS, POSITION, SIZE, MODE = 2, 3, 8, 10
PIPE_ID, PIPE_FLAGS, FIFO_NAME = 2, 3, 3
EVENTFD_COUNT, EPOLL_TARGETS, PIDFD_PID, MEMFD_POSITION, MEMFD_INODE = 4, 4, 4, 3, 5
INODE_NAME, INODE_SIZE, INODE_SHMID, INODE_NUMBER = 1, 4, 5, 7
MODES = {
    stat.S_IFDIR: "directory", stat.S_IFCHR: "device", stat.S_IFBLK: "device",
    stat.S_IFIFO: "fifo", stat.S_IFLNK: "link",
}  # fmt: skip


@dataclass(frozen=True)
class HeldFile:
    """One open file, which descriptors, mappings and working directories refer to."""

    number: int  # in these images
    kind: str  # file, directory, device, socket, pipe, fifo, memfd, eventfd …
    name: str  # path, or what else tells it from others of its kind; empty: nothing does
    access: str  # r, w, rw, or a and ra where every write goes to the end
    position: int = 0
    size_bytes: int = -1  # at the dump; -1: not told
    deleted: bool = False  # its content is in the images, or it has another name
    segment: int = 0  # of a memfd: number of the shared memory behind it
    socket: Socket | None = None


@dataclass(frozen=True)
class Descriptor:
    """One descriptor of a process."""

    number: int
    file: HeldFile
    close_on_exec: bool = False


@dataclass(frozen=True)
class _Memfd:
    name: str
    size_bytes: int
    segment: int


def read_files(images: Path) -> dict[int, HeldFile]:
    """Every open file by its number; raises DriverError naming an image that is damaged."""
    path = images / FILES
    memfds = _memfds(images)
    gone = _deleted(images)
    found: dict[int, HeldFile] = {}
    entries = read_entries(path, FILES_MAGIC)
    for entry in entries:
        number = entry.number(FILE_ID)
        if number in found:
            raise damaged(path, f"file {number} is in it twice")
        found[number] = _file(images, entry, number, memfds, gone)
    for entry in entries:  # a FIFO's path is that of another entry
        if fifo := entry.inner(FIFO):
            number, named = entry.number(FILE_ID), file_of(found, fifo.number(FIFO_NAME), path)
            found[number] = HeldFile(number, "fifo", named.name, named.access)
    return found


def read_descriptors(
    images: Path, table: int, files: Mapping[int, HeldFile]
) -> tuple[Descriptor, ...]:
    """A table of descriptors by their numbers; raises DriverError as `read_files` does."""
    path = images / f"fdinfo-{table}.img"
    found = {
        entry.number(FD_NUMBER): Descriptor(
            number=entry.number(FD_NUMBER),
            file=file_of(files, entry.number(FD_FILE), path),
            close_on_exec=bool(entry.number(FD_FLAGS) & CLOSE_ON_EXEC),
        )
        for entry in read_entries(path, FDINFO_MAGIC)
    }
    return tuple(found[number] for number in sorted(found))


def file_of(files: Mapping[int, HeldFile], number: int, asked_by: Path) -> HeldFile:
    """The file of a number that another image has; raises DriverError when there is none."""
    found = files.get(number)
    if found is None:
        raise damaged(asked_by, f"it names file {number}, which {FILES} lacks")
    return found


def access_of(flags: int) -> str:
    """How a file was opened."""
    how = {os.O_RDONLY: "r", os.O_WRONLY: "w", os.O_RDWR: "rw"}.get(flags & os.O_ACCMODE, "?")
    return how.replace("w", "a") if flags & os.O_APPEND else how


def _file(
    images: Path,
    entry: Entry,
    number: int,
    memfds: Mapping[int, _Memfd],
    gone: Set[int],
) -> HeldFile:
    if regular := entry.inner(FILE_REG):
        return _regular(regular, number, gone)
    if inet := entry.inner(INET):
        return _socket(number, inet_socket(images, inet))
    if unix := entry.inner(UNIX):
        return _socket(number, unix_socket(unix))
    for field, name in ((NETLINK, "netlink"), (PACKET, "packet")):
        if other := entry.inner(field):
            return _socket(number, other_socket(name, other))
    for field, kind in KINDS.items():
        if special := entry.inner(field):
            return _special(special, number, field, kind, memfds)
    if entry.has(FIFO):
        return HeldFile(number, "fifo", "", "")  # completed when all are read
    raise damaged(entry.path, f"file {number} is of no kind that is known here")


def _regular(entry: Entry, number: int, gone: Set[int]) -> HeldFile:
    mode = entry.number(MODE)
    return HeldFile(
        number=number,
        kind=MODES.get(stat.S_IFMT(mode), "file"),
        name=entry.text(REG_NAME),
        access=access_of(entry.number(FLAGS)),
        position=entry.number(POSITION),
        size_bytes=entry.number(SIZE, -1),
        deleted=number in gone,
    )


def _socket(number: int, socket: Socket) -> HeldFile:
    ends = " -> ".join(end for end in (socket.local, socket.remote) if end)
    return HeldFile(number, "socket", f"{socket.protocol} {ends}".rstrip(), "rw", socket=socket)


def _special(
    entry: Entry, number: int, field: int, kind: str, memfds: Mapping[int, _Memfd]
) -> HeldFile:
    access = access_of(entry.number(FLAGS))
    if field == MEMFD:
        memfd = memfds.get(entry.number(MEMFD_INODE))
        if memfd is None:
            raise damaged(entry.path, f"file {number} is memory that memfd.img lacks")
        position = entry.number(MEMFD_POSITION)
        return HeldFile(
            number, kind, memfd.name, access, position, memfd.size_bytes, False, memfd.segment
        )
    if field == PIPE:
        flags = entry.number(PIPE_FLAGS)
        return HeldFile(number, kind, f"pipe {entry.number(PIPE_ID)}", access_of(flags))
    if field == EVENTFD:
        return HeldFile(number, kind, f"count {entry.number(EVENTFD_COUNT)}", access)
    if field == EPOLL:
        return HeldFile(number, kind, f"{len(entry.inners(EPOLL_TARGETS))} watched", access)
    if field == PIDFD:
        return HeldFile(number, kind, f"process {entry.number(PIDFD_PID)}", access)
    return HeldFile(number, kind, "", access)


def _memfds(images: Path) -> dict[int, _Memfd]:
    path = images / "memfd.img"
    if not path.exists():
        return {}
    return {
        entry.number(INODE_NUMBER): _Memfd(
            entry.text(INODE_NAME), entry.number(INODE_SIZE), entry.number(INODE_SHMID)
        )
        for entry in read_entries(path, MEMFD_MAGIC)
    }


def _deleted(images: Path) -> frozenset[int]:
    """Files without the name they were opened by; their contents are in the images, or linked."""
    path = images / REMAPS
    entries = read_entries(path, REMAP_MAGIC) if path.exists() else ()
    return frozenset(
        entry.number(REMAP_ORIG) for entry in entries if entry.number(REMAP_TYPE) in GONE
    )
