"""Which regular files a stopped tree can still change: open for writing, or mapped shared.

And all of /dev/shm that it has open in any way.
Deleted files are left out: CRIU carries their contents in the images. A file whose name here is
deleted and that has another one in the same directory is known by that.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from coordinator.core.errors import DriverError
from worker_shim.hook.page import PATH_VARIABLE
from worker_shim.process.port import Tree

PROC = Path("/proc")
SHM = "/dev/shm/"
ANY_INODE = 0
# File systems that show the kernel's own state as files; nothing there can be put back.
KERNEL_KINDS = frozenset(
    (
        *("proc", "sysfs", "cgroup", "cgroup2", "debugfs", "tracefs", "securityfs", "bpf"),
        *("devpts", "devtmpfs", "mqueue", "hugetlbfs", "pstore", "configfs", "fusectl"),
        *("efivarfs", "binfmt_misc"),
    )
)
# /dev/shm is memory of the job, however it is mapped: no other node has it.
HELD_MAPPING = re.compile(r"^(\S+) (?:.w.s \S+ \S+ \d+\s+(/.*)|\S+ \S+ \S+ \d+\s+(/dev/shm/.*))$")
DELETED = " (deleted)"
REMAP = "link_remap."  # names that CRIU makes for itself


@dataclass(frozen=True)
class Held:
    """One file that the tree holds."""

    path: str
    status: os.stat_result
    role: str


def held_files(tree: Tree) -> tuple[Held, ...]:
    """Each file once, in the order of paths; a file known by two names counts twice.

    Raises DriverError for a name that is not UTF-8.
    """
    not_real = kernel_devices()
    pages = set(_control_pages(tree.pids))
    logs = _logs(tree)
    found: dict[str, Held] = {}
    for path, inode in _held_paths(tree.pids):
        if path in found:
            continue
        status = _status(path, inode)
        if status is None or status.st_dev in not_real:
            continue
        _require_utf8(path)
        found[path] = Held(path, status, _role(path, pages, logs))
    return tuple(found[path] for path in sorted(found))


def _require_utf8(path: str) -> None:
    """Manifests and records hold text."""
    try:
        path.encode()
    except UnicodeEncodeError:
        raise DriverError(
            f"the worker holds a file whose name is not UTF-8: {path!a}",
            advice="rename it",
        ) from None


def _role(path: str, pages: set[str], logs: set[str]) -> str:
    if path in pages:
        return "page"
    if path in logs:
        return "log"
    return "shm" if path.startswith(SHM) else "data"


def _status(path: str, inode: int) -> os.stat_result | None:
    """The regular file of that name, if it is the very file that is held."""
    try:
        status = os.lstat(path)
    except OSError:
        return None
    if not stat.S_ISREG(status.st_mode) or inode not in (ANY_INODE, status.st_ino):
        return None
    return status


def _held_paths(pids: Iterable[int]) -> Iterator[tuple[str, int]]:
    for pid in pids:
        yield from _open_for_writing(pid)
        yield from _mapped(pid)


def _open_for_writing(pid: int) -> Iterator[tuple[str, int]]:
    for descriptor in _entries(PROC / str(pid) / "fd"):
        try:
            path = os.readlink(descriptor)
            if not path.startswith("/"):
                continue
            info = (PROC / str(pid) / "fdinfo" / descriptor.name).read_text()
            status = descriptor.stat()
        except (FileNotFoundError, ProcessLookupError):
            continue
        flags = re.search(r"^flags:\s+([0-7]+)", info, re.MULTILINE)
        writable = flags and int(flags.group(1), 8) & os.O_ACCMODE != os.O_RDONLY
        if writable or path.startswith(SHM):
            yield _name_now(path, status), status.st_ino


def _mapped(pid: int) -> Iterator[tuple[str, int]]:
    try:
        text = (PROC / str(pid) / "maps").read_text(errors="surrogateescape")
    except (FileNotFoundError, ProcessLookupError):
        return
    for line in text.splitlines():
        mapping = HELD_MAPPING.match(line)
        if not mapping:
            continue
        # Newlines are the only characters that maps escapes. Its inode is not that of stat
        # on every file system (overlayfs), so it proves nothing.
        path = (mapping.group(2) or mapping.group(3)).replace("\\012", "\n")
        if path.endswith(DELETED):
            try:
                path = _name_now(path, (PROC / str(pid) / "map_files" / mapping.group(1)).stat())
            except OSError:
                continue
        yield path, ANY_INODE


def _name_now(path: str, status: os.stat_result) -> str:
    """Another name of a file whose name was deleted, in the same directory, or the path itself."""
    if not path.endswith(DELETED) or not status.st_nlink:
        return path
    try:
        with os.scandir(os.path.dirname(path)) as entries:
            for entry in entries:
                if entry.inode() == status.st_ino and not entry.name.startswith(REMAP):
                    return entry.path
    except OSError:
        pass
    return path


def nameless_bytes(tree: Tree) -> int:
    """Bytes of regular files without any name (memfd too) that the tree has open or mapped."""
    sizes: dict[tuple[int, int], int] = {}
    for pid in tree.pids:
        own = PROC / str(pid)
        for entry in (*_entries(own / "fd"), *_nameless_mappings(own)):
            try:
                status = entry.stat()
            except OSError:
                continue
            if stat.S_ISREG(status.st_mode) and not status.st_nlink:
                sizes[status.st_dev, status.st_ino] = status.st_blocks * 512
    return sum(sizes.values())


def _nameless_mappings(own: Path) -> Iterator[Path]:
    try:
        lines = (own / "maps").read_text(errors="surrogateescape").splitlines()
    except (FileNotFoundError, ProcessLookupError):
        return
    for line in lines:
        if line.endswith(DELETED):
            yield own / "map_files" / line.split(" ", 1)[0]


def _logs(tree: Tree) -> set[str]:
    """Where the root's stdout and stderr go."""
    found = set()
    for descriptor in (1, 2):
        try:
            found.add(os.readlink(PROC / str(tree.pids[0]) / "fd" / str(descriptor)))
        except (IndexError, FileNotFoundError, ProcessLookupError):
            continue
    return found


def _control_pages(pids: Iterable[int]) -> Iterator[str]:
    prefix = f"{PATH_VARIABLE}=".encode()
    for pid in pids:
        try:
            variables = (PROC / str(pid) / "environ").read_bytes().split(b"\0")
        except (FileNotFoundError, ProcessLookupError):
            continue
        for variable in variables:
            if variable.startswith(prefix):
                yield os.fsdecode(variable[len(prefix) :])


def _entries(directory: Path) -> list[Path]:
    try:
        return list(directory.iterdir())
    except (FileNotFoundError, ProcessLookupError):
        return []


def kernel_devices() -> frozenset[int]:
    """Device numbers of the mounted file systems of `KERNEL_KINDS`."""
    found = set()
    for line in (PROC / "self" / "mountinfo").read_text().splitlines():
        fields = line.split()
        kind = fields[fields.index("-") + 1]
        if kind in KERNEL_KINDS:
            major, _, minor = fields[2].partition(":")
            found.add(os.makedev(int(major), int(minor)))
    return frozenset(found)
